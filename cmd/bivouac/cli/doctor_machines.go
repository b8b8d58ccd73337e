package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
)

// examineMachines says which machines of this person take no work, and why.
func (a *app) examineMachines(ctx context.Context, r *finding.Report) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	res, err := a.api.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
	if r.Err("machines", err, "they do the work", "bivouac edge list") {
		return
	}
	judgeMachines(r, res.GetRunners(), a.devEdge)
}

// judgeMachines warns of each machine that is away, paused or without room for
// turns. stateOf is the state directory of one on this machine, where it is known.
func judgeMachines(r *finding.Report, runners []*apiv1.Runner, stateOf func(id string) string) {
	const why = "what is meant for it waits"
	active, fine := 0, 0
	for _, m := range runners {
		if m.GetState() != "ACTIVE" {
			continue // revoked: it is not to come back
		}
		active++
		name, check := plain(m.GetName()), "machine."+plain(m.GetName())
		state := stateOf(m.GetId())
		switch {
		case m.GetPaused():
			r.Warn(check, name+" is paused by its owner", why, edgeAt(state, "resume"))
		case m.GetSandboxProblem() == protocol.NotRunYet:
			r.Warn(check, name+" has joined, and bivouac-edge does not run there yet", why, edgeAt(state, "run"))
		case !m.GetConnected():
			mend := edgeAt(state, "doctor") // it may run, and only its network be gone
			if state != "" {
				mend = edgeAt(state, "run") + ", or bivouac dev --data " + shellword.Quote(filepath.Dir(state)) + ", which runs it"
			}
			r.Warn(check, name+" is offline, last seen "+ago(m.GetLastSeenAt()), why, mend)
		case m.GetSandboxProblem() != "":
			r.Warn(check, name+" takes no turns in sandboxes: "+harmless(m.GetSandboxProblem()), "turns in sandboxes are not placed there", edgeAt(state, "doctor"))
		case m.GetSlots() == 0:
			r.Warn(check, name+" has no slot for turns", "turns in sandboxes are not placed there", "raise slots in its edge.hcl; "+edgeAt(state, "doctor"))
		case m.GetProblem() != "":
			r.Warn(check, name+": "+harmless(m.GetProblem()), "work is given to it, and may fail there", edgeAt(state, "doctor"))
		default:
			fine++
			r.Fine(check, "%s is connected, %d of %d slot(s) busy", name, m.GetSlotsBusy(), m.GetSlots())
		}
	}
	if active == 0 {
		r.Warn("machines", "you have no machine", "turns in sandboxes and actions on files wait for one", "bivouac edge invite")
	}
}

// edgeAt is a command for the machine itself, with its state directory where it is
// known: then it is this machine.
func edgeAt(state, command string) string {
	if state == "" {
		return "bivouac-edge " + command + "  (on that machine)"
	}
	return "bivouac-edge " + command + " --state " + shellword.Quote(state)
}

// devEdge is where bivouac dev keeps the runner of this id; empty when it is
// another's.
func (a *app) devEdge(id string) string {
	for _, data := range []string{filepath.Dir(a.config), defaultDevDir()} {
		var e struct {
			Runner string `json:"runner_id"`
		}
		state := filepath.Join(data, "edge")
		b, err := os.ReadFile(filepath.Join(state, "enrolment.json"))
		if err == nil && json.Unmarshal(b, &e) == nil && e.Runner == id {
			return state
		}
	}
	return ""
}
