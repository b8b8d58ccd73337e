package placement

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/mod/semver"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

// Record says which turns a harness may carry out: the loop in a machine's sandbox,
// by the name that a definition calls its adapter. It is the server's, not the
// machine's: a runner says what it has, and this says what that is good for.
type Record struct {
	Harness string
	// Oldest version that is given turns. A build without a version is judged by its
	// protocol alone.
	Oldest string
	// Protocols of worker and supervisor that are admitted, both ends included.
	OldestProtocol, NewestProtocol int32
	// Resumes: it may be given a turn that goes on from a checkpoint. Egress: one that
	// names registries.
	Resumes, Egress bool
}

// Compatibility is the whole record. What has no row is given no turn.
var Compatibility = []Record{
	{Harness: protocol.AdapterNative, Oldest: "0.1.0", OldestProtocol: 1, NewestProtocol: protocol.WorkerProtocol, Resumes: true, Egress: true},
	{Harness: protocol.AdapterScripted, Oldest: "0.1.0", OldestProtocol: 1, NewestProtocol: protocol.WorkerProtocol, Resumes: true, Egress: true},
}

// Misfit says why what a machine has may not carry out what is asked, and what mends
// it; nil where it may. INV-11.
func Misfit(records []Record, q execution.Requirements, facts execution.Facts) *Reason {
	i := slices.IndexFunc(records, func(r Record) bool { return r.Harness == q.Adapter })
	if i < 0 {
		return &Reason{ReasonHarness, fmt.Sprintf("this server has no record of the harness %s", q.Adapter), "update bivouac-server, or choose another adapter in the agent"}
	}
	r := records[i]
	update := fmt.Sprintf("on that machine: install bivouac-edge %s or newer, and start it again", r.Oldest)
	h := slices.IndexFunc(facts.Harnesses, func(h execution.Harness) bool { return h.Name == q.Adapter })
	if h < 0 {
		return &Reason{ReasonHarness, fmt.Sprintf("its bivouac-edge %s does not say which worker it has, so it is from before this server's record (%s %s)",
			cmp.Or(facts.Version, "of unknown version"), r.Harness, r.Oldest), update}
	}
	have := facts.Harnesses[h]
	its := fmt.Sprintf("its worker is %s %s (protocol %d)", have.Name, cmp.Or(have.Version, "without a version"), have.Protocol)
	switch v := "v" + have.Version; {
	case semver.IsValid(v) && semver.Compare(v, "v"+r.Oldest) < 0:
		return &Reason{ReasonHarness, fmt.Sprintf("%s, and turns need %s or newer", its, r.Oldest), update}
	case have.Protocol < r.OldestProtocol:
		return &Reason{ReasonHarness, fmt.Sprintf("%s, and this server speaks %d to %d", its, r.OldestProtocol, r.NewestProtocol), update}
	case have.Protocol > r.NewestProtocol:
		return &Reason{ReasonHarness, fmt.Sprintf("%s, and this server speaks %d to %d", its, r.OldestProtocol, r.NewestProtocol), "update bivouac-server"}
	case q.Resumes && !r.Resumes:
		return &Reason{ReasonHarness, fmt.Sprintf("%s, which cannot go on from a checkpoint", its), "send the turn anew: it begins from the files as they were accepted"}
	case q.Egress && !r.Egress:
		return &Reason{ReasonHarness, fmt.Sprintf("%s, whose sandboxes have no way to registries", its), "remove egress from the agent, or choose another adapter"}
	}
	return nil
}

// Outdated says of a machine that takes turns which of its harnesses get none, each
// with what mends it.
func Outdated(facts execution.Facts) (out []Reason) {
	for _, name := range facts.Adapters {
		if r := Misfit(Compatibility, execution.Requirements{Adapter: name}, facts); r != nil {
			out = append(out, *r)
		}
	}
	return out
}
