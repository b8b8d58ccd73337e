package execution

import (
	"fmt"
	"slices"
	"strings"
)

// Class is what may be done about an effect of which nobody has an answer.
type Class string

const (
	// Reads change nothing: they may be made again, and without an answer they failed.
	Reads Class = "read"
	// Idempotent effects may be sent again under the same key.
	Idempotent Class = "idempotent"
	// Inspectable effects have somebody who can look whether they happened.
	Inspectable Class = "inspectable"
	// Opaque effects have nobody to ask but who carried them out.
	Opaque Class = "opaque"
)

// Classes in the order in which they are shown.
var Classes = []Class{Reads, Idempotent, Inspectable, Opaque}

// Point is where an action was when a process died: the last of it that is durable.
type Point string

const (
	// AtIntent: the intent is durable, and nothing was sent (INV-4).
	AtIntent Point = "intent"
	// AtSent: it was on its way, and there is no outcome.
	AtSent Point = "sent"
	// AtEnded: the same, and its turn has ended since: nothing is sent any more.
	AtEnded Point = "turn ended"
	// AtOverdue: the time in which evidence is sought has passed.
	AtOverdue Point = "overdue"
)

// Points in order.
var Points = []Point{AtIntent, AtSent, AtEnded, AtOverdue}

// Knower is who has something to say about it, and what.
type Knower string

const (
	// Nobody was asked, or who was asked does not answer.
	Nobody Knower = "nobody"
	// Here: this process has the call under way.
	Here Knower = "this server: under way"
	// MachineAway: its machine has the journal, and does not talk to us.
	MachineAway Knower = "machine: away"
	// MachineResult: the machine's journal has the result.
	MachineResult Knower = "machine: result"
	// MachineHolds: it waited for its owner's second key, without which nothing
	// begins, and is away for longer than its lease lasted.
	MachineHolds Knower = "machine: held for its owner"
	// MachineLost: the machine looked, and cannot tell.
	MachineLost Knower = "machine: cannot tell"
	// LogAbsent: the broker's call log reaches back to the intent and has no sending.
	LogAbsent Knower = "call log: never sent"
	// LogOpen: it was sent, and an answer may still come.
	LogOpen Knower = "call log: sent"
	// LogLost: it was sent, and no answer will come.
	LogLost Knower = "call log: sent, no answer comes"
	// LogAnswered: the log has the answer's status and digest.
	LogAnswered Knower = "call log: answered"
	// SeenDone: the inspector found the effect.
	SeenDone Knower = "inspector: happened"
	// SeenAbsent: the inspector found none, late enough for it to be there.
	SeenAbsent Knower = "inspector: did not happen"
	// SeenNothing: the inspector cannot tell.
	SeenNothing Knower = "inspector: cannot tell"
)

// Knowers in the order in which they are shown.
var Knowers = []Knower{Nobody, Here, MachineAway, MachineResult, MachineHolds, MachineLost, LogAbsent, LogOpen, LogLost, LogAnswered, SeenDone, SeenAbsent, SeenNothing}

// Remedy is what is done.
type Remedy string

const (
	// Dispatch sends it for the first time.
	Dispatch Remedy = "dispatch"
	// Await does nothing: who has it speaks, or the time passes.
	Await Remedy = "await"
	// Resend sends it again, under the same key. INV-5.
	Resend Remedy = "resend"
	// Ask asks the broker's call log.
	Ask Remedy = "ask"
	// Inspect has the inspector look.
	Inspect Remedy = "inspect"
	// Accept takes what was told as the outcome.
	Accept Remedy = "accept"
	// Refute settles that it did not happen: it failed, and may be asked for again.
	Refute Remedy = "refute"
	// GiveUp settles that nobody knows: UNKNOWN, for good. INV-5.
	GiveUp Remedy = "give up"
)

// Row is one line of the table: what is done for each class.
type Row struct {
	Point    Point
	Knower   Knower
	Remedies map[Class]Remedy
}

// each class in the order of Classes.
func each(p Point, k Knower, reads, idempotent, inspectable, opaque Remedy) Row {
	return Row{p, k, map[Class]Remedy{Reads: reads, Idempotent: idempotent, Inspectable: inspectable, Opaque: opaque}}
}

// all classes alike.
func all(p Point, k Knower, r Remedy) Row { return each(p, k, r, r, r, r) }

// onMachine has the classes of what a machine does: it reads, or writes a file.
func onMachine(p Point, k Knower, reads, inspectable Remedy) Row {
	return Row{p, k, map[Class]Remedy{Reads: reads, Inspectable: inspectable}}
}

// asked has the classes of which the call log is asked: others are sent again.
func asked(p Point, k Knower, inspectable, opaque Remedy) Row {
	return Row{p, k, map[Class]Remedy{Inspectable: inspectable, Opaque: opaque}}
}

// sought has the classes of which the call log is asked once nothing is sent again.
func sought(p Point, k Knower, r Remedy) Row {
	return Row{p, k, map[Class]Remedy{Idempotent: r, Inspectable: r, Opaque: r}}
}

// looked has the one class that has an inspector.
func looked(p Point, k Knower, r Remedy) Row { return Row{p, k, map[Class]Remedy{Inspectable: r}} }

// Recovery is the whole table. What it does not have cannot be. On every start,
// and for as long as something is open, it decides. INV-5.
var Recovery = []Row{
	all(AtIntent, Nobody, Dispatch),

	each(AtSent, Nobody, Resend, Resend, Ask, Ask),
	all(AtSent, Here, Await),
	onMachine(AtSent, MachineAway, Await, Await),
	onMachine(AtSent, MachineResult, Accept, Accept),
	onMachine(AtSent, MachineHolds, Refute, Refute),
	onMachine(AtSent, MachineLost, Refute, GiveUp),
	asked(AtSent, LogAbsent, Refute, Refute),
	asked(AtSent, LogOpen, Ask, Ask),
	asked(AtSent, LogLost, Inspect, GiveUp),
	asked(AtSent, LogAnswered, Accept, Accept),
	looked(AtSent, SeenDone, Accept),
	looked(AtSent, SeenAbsent, Refute),
	looked(AtSent, SeenNothing, Inspect),

	// The authority to send, and to look, ended with the turn.
	each(AtEnded, Nobody, Refute, Ask, Ask, Ask),
	onMachine(AtEnded, MachineAway, Await, Await),
	onMachine(AtEnded, MachineResult, Accept, Accept),
	onMachine(AtEnded, MachineLost, Refute, GiveUp),
	sought(AtEnded, LogAbsent, Refute),
	sought(AtEnded, LogOpen, Ask),
	sought(AtEnded, LogLost, GiveUp),
	sought(AtEnded, LogAnswered, Accept),

	each(AtOverdue, Nobody, Refute, GiveUp, GiveUp, GiveUp),
}

// Cell is one case of the table.
type Cell struct {
	Class  Class
	Point  Point
	Knower Knower
}

func (c Cell) String() string {
	return fmt.Sprintf("%s/%s/%s", c.Class, c.Point, c.Knower)
}

// Recover is what is done in a case; ok is false for one that cannot be.
func Recover(c Cell) (r Remedy, ok bool) {
	i := slices.IndexFunc(Recovery, func(row Row) bool { return row.Point == c.Point && row.Knower == c.Knower })
	if i < 0 {
		return "", false
	}
	r, ok = Recovery[i].Remedies[c.Class]
	return r, ok
}

// Cells are all cases of the table, in its order.
func Cells() (out []Cell) {
	for _, row := range Recovery {
		for _, c := range Classes {
			if _, is := row.Remedies[c]; is {
				out = append(out, Cell{c, row.Point, row.Knower})
			}
		}
	}
	return out
}

// RecoveryTable is the table as Markdown, for ARCHITECTURE.md.
func RecoveryTable() string {
	var b strings.Builder
	b.WriteString("| left at | who knows |")
	for _, c := range Classes {
		fmt.Fprintf(&b, " %s |", c)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(Classes)) + "\n")
	for _, row := range Recovery {
		fmt.Fprintf(&b, "| %s | %s |", row.Point, row.Knower)
		for _, c := range Classes {
			r, is := row.Remedies[c]
			if !is {
				r = "—"
			}
			fmt.Fprintf(&b, " %s |", r)
		}
		b.WriteString("\n")
	}
	return b.String()
}
