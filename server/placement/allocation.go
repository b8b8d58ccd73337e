package placement

import (
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/protocol/secondkey"
	"bivouac/server/execution"
)

// shareInstead is what a definition may say where no allocation is needed.
const shareInstead = "or say allocation = \"shared\" in the agent"

// allocates says what speaks against an allocation of its own for an attempt that asks for
// one, on a runner. It never shares another's instead: that is weaker. INV-11.
func allocates(a execution.Attempt, r execution.Runner, f Fleet) []Reason {
	if !a.Requirements.Allocation {
		return nil
	}
	host, known := f.Hosts[r.ID]
	var out []Reason
	add := func(text, remedy string) { out = append(out, Reason{ReasonAllocation, text, remedy}) }
	switch {
	case r.Workload == "":
		add("it was not started by Nomad, and the agent asks for an allocation of its own", "run the agent's turns on machines of jobs/runner.nomad.hcl, "+shareInstead)
		return out
	case !known:
		add("this server does not watch Nomad, and the agent asks for an allocation of its own", "name token_file in the nomad block of server.hcl (jobs/README.md), "+shareInstead)
		return out
	case host.Unknown.Text != "":
		add(host.Unknown.Text, host.Unknown.Remedy)
	case host.Most != execution.Resources{}:
		out = append(out, tooLarge(a.Requirements.Resources, host)...)
	case host.Node.Text == "" && f.Allocations.Most > 0: // otherwise something is said of it already
		add("Nomad does not say how much its node has, and the agent asks for an allocation of its own", "nomad node status, "+shareInstead)
	}
	if !r.Facts.Allocations {
		add("its bivouac-edge does not start turns in allocations of their own", "on that machine: install a newer bivouac-edge, and start its job again")
	}
	if slices.Contains(r.Facts.SecondKeys, secondkey.Turn) {
		add("its owner is asked about each turn there, and Nomad is not asked for an allocation that may wait for an answer", "take \"turn\" out of second_key in edge.hcl on that machine, "+shareInstead)
	}
	if full := f.Allocations.Full[r.ID]; full.Text != "" {
		add(full.Text, full.Remedy)
	}
	switch all := f.Allocations; {
	case all.Held.Text != "":
		add(all.Held.Text, all.Held.Remedy)
	case all.Most == 0:
		add("this server starts no allocations", "raise max_allocations in the nomad block of server.hcl, "+shareInstead)
	case all.Taken >= all.Most:
		add(all.taken())
	}
	return out
}

// tooLarge says what a turn asks for that its node has not in all. It is not asked for
// there: it would wait until its time is over, and hold up those that fit.
func tooLarge(asks execution.Resources, host Host) (out []Reason) {
	for _, r := range []struct {
		field, unit               string
		asks, most, largest, each int64
	}{
		{"memory", "MiB of memory", asks.MemoryBytes, host.Most.MemoryBytes, host.Largest.MemoryBytes, 1 << 20},
		{"cpu_millis", "thousandths of a core", asks.CPUMillis, host.Most.CPUMillis, host.Largest.CPUMillis, 1},
		{"disk", "MiB of disk", asks.DiskBytes, host.Most.DiskBytes, host.Largest.DiskBytes, 1 << 20},
	} {
		if r.asks == 0 || r.asks <= r.most {
			continue
		}
		up, down := func(n int64) int64 { return (n + r.each - 1) / r.each }, func(n int64) int64 { return max(0, n/r.each) }
		text := fmt.Sprintf("the agent asks %d %s for a turn, and the largest node of pool %s has %d for one", up(r.asks), r.unit, host.Pool, down(max(r.most, r.largest)))
		other := "add a larger node to pool " + host.Pool
		if r.asks <= r.largest {
			text = fmt.Sprintf("the agent asks %d %s for a turn, and its node has %d for one (the largest of pool %s has %d)", up(r.asks), r.unit, down(r.most), host.Pool, down(r.largest))
			other = "have a runner on a larger node of pool " + host.Pool
		}
		out = append(out, Reason{ReasonAllocation, text,
			fmt.Sprintf("lower %s in the sandbox of the agent, bivouac agents apply FILE, and send the turn anew; or %s", r.field, other)})
	}
	return out
}

// NoRoom says what a turn asks for that no node of a list has beside its runner, with the
// most that one has of it; empty: one has all, or none is known.
func NoRoom(asks Resources, nodes []Resources) string {
	var most Resources
	for _, n := range nodes {
		if asks.CPUMillis <= n.CPUMillis && asks.MemoryBytes <= n.MemoryBytes && asks.DiskBytes <= n.DiskBytes {
			return ""
		}
		most = Resources{CPUMillis: max(most.CPUMillis, n.CPUMillis), MemoryBytes: max(most.MemoryBytes, n.MemoryBytes), DiskBytes: max(most.DiskBytes, n.DiskBytes)}
	}
	if len(nodes) == 0 {
		return ""
	}
	var short []string
	for _, r := range []struct {
		field, unit      string
		asks, most, each int64
	}{
		{"cpu_millis", "", asks.CPUMillis, most.CPUMillis, 1},
		{"memory", "MiB", asks.MemoryBytes, most.MemoryBytes, 1 << 20},
		{"disk", "MiB", asks.DiskBytes, most.DiskBytes, 1 << 20},
	} {
		if r.asks > r.most {
			short = append(short, fmt.Sprintf("%s is %d%s, and no node has more than %d%[3]s for one turn", r.field, (r.asks+r.each-1)/r.each, r.unit, max(0, r.most/r.each)))
		}
	}
	if len(short) == 0 {
		return "no single node has its cpu_millis, memory and disk for one turn"
	}
	return strings.Join(short, "; ")
}

// namedJobs bounds how many jobs one reason names.
const namedJobs = 3

// taken says that there are as many as there may be. A job that is stopped and whose node
// is out of reach counts until Nomad hears of its end, or purges the node.
func (all Allocations) taken() (text, remedy string) {
	text, remedy = fmt.Sprintf("all of the %d allocations of this server are taken", all.Most), "wait, or raise max_allocations in the nomad block of server.hcl"
	if len(all.Ending) == 0 {
		return text, remedy
	}
	names := strings.Join(all.Ending[:min(namedJobs, len(all.Ending))], ", ")
	if more := len(all.Ending) - namedJobs; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s; %d of them were stopped, and Nomad has not seen their end: %s", text, len(all.Ending), names),
		"wait; where it stays so, nomad node status shows a node that is down or disconnected: bring it back, or where it is gone for good: nomad operator api -X PUT /v1/node/NODE/purge"
}
