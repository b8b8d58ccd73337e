package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/jobs/workload"
)

// Bounds of what is remembered of refusals.
const (
	// mostRefused tasks of rules, and as many of no rule: who may run jobs in Nomad
	// does not push out what somebody waits for.
	mostRefused = 16
	// refusedFor is how long one is spoken of after the last time.
	refusedFor = 24 * time.Hour
	maxName    = 128
	maxRefusal = 600
)

// Refusals are the enrolments by workload identity that this server refused lately, in its
// memory alone. What Nomad has signed is kept by machine and class; what it has not is
// only counted, for anybody can send it. No token is kept.
type Refusals struct {
	mu        sync.Mutex // guards below
	tasks     map[taskRefused]*refusal
	strangers map[workload.Class]*refusal
}

type taskRefused struct {
	machine string
	class   workload.Class
}

type refusal struct {
	who         workload.Identity
	rule, says  string
	mend        string
	times       int
	first, last time.Time
}

// NewRefusals remembers none.
func NewRefusals() *Refusals {
	return &Refusals{tasks: map[taskRefused]*refusal{}, strangers: map[workload.Class]*refusal{}}
}

// Judged notes what an identity was refused with.
func (f *Refusals) Judged(err error, now time.Time) {
	var signed *workload.Refused
	switch {
	case err == nil:
	case errors.As(err, &signed):
		f.note(signed, now)
	case protocol.CodeOf(err) == protocol.CodeUnauthenticated:
		f.count(workload.ClassUnsigned, now)
	case protocol.CodeOf(err) == protocol.CodeInvalidArgument:
		f.count(workload.ClassUnreadable, now)
	case protocol.CodeOf(err) == protocol.CodeUnavailable:
		f.count(workload.ClassKeys, now)
	}
}

// Enrolled notes what became of an enrolment that Nomad's word was enough for. With the
// machine enrolled, what was refused of it is over.
func (f *Refusals) Enrolled(rule workload.Rule, id workload.Identity, err error, now time.Time) {
	switch protocol.CodeOf(err) {
	case "":
		f.mu.Lock()
		defer f.mu.Unlock()
		maps.DeleteFunc(f.tasks, func(_ taskRefused, r *refusal) bool {
			return r.who.Namespace == id.Namespace && r.who.Job == id.Job && r.who.Task == id.Task && (r.who.Node == id.Node || r.who.Node == "")
		})
	case protocol.CodeUnavailable, protocol.CodeDeadlineExceeded, protocol.CodeCancelled, protocol.CodeInternal:
		// of this server, which says it itself
	default:
		f.note(&workload.Refused{Class: workload.ClassEnrol, Who: id, Rule: rule.Name, Err: err}, now)
	}
}

func (f *Refusals) count(c workload.Class, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.strangers[c]
	if r == nil || now.Sub(r.last) > refusedFor {
		r = &refusal{first: now}
		f.strangers[c] = r
	}
	r.last, r.times = now, r.times+1
}

func (f *Refusals) note(of *workload.Refused, now time.Time) {
	who := workload.Identity{Namespace: bounded(of.Who.Namespace, maxName), Job: bounded(of.Who.Job, maxName), Task: bounded(of.Who.Task, maxName), Node: of.Who.Node}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.tasks, func(_ taskRefused, r *refusal) bool { return now.Sub(r.last) > refusedFor })
	key := taskRefused{who.Machine(), of.Class}
	r := f.tasks[key]
	if r == nil {
		f.room(of.Rule != "")
		r = &refusal{who: who, first: now}
		f.tasks[key] = r
	}
	r.rule, r.says, r.last, r.times = of.Rule, bounded(of.Err.Error(), maxRefusal), now, r.times+1
	r.mend = mendOf(of.Class, who)
}

// room forgets the oldest of its kind where there is none. The lock is held.
func (f *Refusals) room(ofRule bool) {
	n := 0
	var oldest taskRefused
	for key, r := range f.tasks {
		if (r.rule != "") != ofRule {
			continue
		}
		if n++; n == 1 || r.last.Before(f.tasks[oldest].last) {
			oldest = key
		}
	}
	if n >= mostRefused {
		delete(f.tasks, oldest)
	}
}

// now is what is spoken of, the newest of rules first.
func (f *Refusals) now(now time.Time) (tasks []refusal, strangers map[workload.Class]refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.tasks {
		if now.Sub(r.last) <= refusedFor {
			tasks = append(tasks, *r)
		}
	}
	slices.SortFunc(tasks, func(a, b refusal) int {
		return cmp.Or(strings.Compare(b.rule, a.rule), b.last.Compare(a.last), strings.Compare(a.who.Machine(), b.who.Machine()), strings.Compare(a.says, b.says))
	})
	strangers = map[workload.Class]refusal{}
	for class, r := range f.strangers {
		if now.Sub(r.last) <= refusedFor {
			strangers[class] = *r
		}
	}
	return tasks, strangers
}

func bounded(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// mendOf is the command that helps; what has to be changed is in the words of the refusal.
func mendOf(c workload.Class, who workload.Identity) string {
	ns := shellword.Quote(who.Namespace)
	switch c {
	case workload.ClassTimes:
		return "nomad job inspect -namespace " + ns + " " + shellword.Quote(who.Job) + "  (the identity block of its task; jobs/runner.nomad.hcl has one that is taken); date  (on this machine and Nomad's)"
	case workload.ClassClaims:
		return "bivouac nomad setup --apply --namespace " + ns + ", then start the job again"
	case workload.ClassRule:
		return "nomad job inspect -namespace " + ns + " " + shellword.Quote(who.Job) + "  (its task, aud and node pool); or correct enrol in server.hcl, then restart bivouac-server"
	}
	return "bivouac edge list, then what the refusal names"
}

// Examine says what was refused. since is when the machine enrolled that has a node now;
// zero: none has: it may have enrolled at another replica.
func (f *Refusals) Examine(r *finding.Report, address string, since func(machine string) time.Time, now time.Time) {
	const check, lost = "enrolment", "no runner joins there, and Nomad starts its task again and again"
	tasks, strangers := f.now(now)
	all := 0
	say := func(n refusal, what, why, mend string) {
		all++
		r.Warn(check, fmt.Sprintf("%s; %d time(s), the last at %s", what, n.times, n.last.UTC().Format(time.RFC3339)), why, mend)
	}
	for _, n := range tasks {
		if since(n.who.Machine()).After(n.last) {
			continue
		}
		where, of := "", "no enrol block of server.hcl is about it"
		if n.who.Node != "" {
			where = " on node " + short(n.who.Node)
		}
		if n.rule != "" {
			of = fmt.Sprintf("enrol %q", n.rule)
		}
		say(n, legible.Line(fmt.Sprintf("task %q of job %q in namespace %q%s (%s): %s", n.who.Task, n.who.Job, n.who.Namespace, where, of, n.says)), lost, n.mend)
	}
	for _, said := range [][4]string{
		{string(workload.ClassUnsigned), "identities that no key of this Nomad signed were refused; what they claim is not known to be true", "they are of another Nomad, of a key that it has retired, or forged", "curl " + address + workload.JWKSPath + "  (from this machine: are these the keys of the Nomad that runs the job?)"},
		{string(workload.ClassUnreadable), "what was sent as an identity is none", "a runner that sends something else does not join", "nomad alloc logs -stderr  (of the runner's job: --enrol-identity must name nomad_<name>.jwt)"},
		{string(workload.ClassKeys), "the keys of Nomad could not be read when a machine enrolled", "no machine enrols by its workload identity meanwhile", "curl " + address + workload.JWKSPath},
	} {
		if n, were := strangers[workload.Class(said[0])]; were {
			say(n, said[1], said[2], said[3])
		}
	}
	if all == 0 {
		r.Fine(check, "no machine was refused that came with an identity of Nomad's, by this server since it started")
	}
}
