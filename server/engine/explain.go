package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/consul/refused"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Explanation says why something waits and what would change that.
type Explanation struct {
	State  string
	Waited time.Duration
	// WaitingFor is one sentence.
	WaitingFor string
	Runners    []RunnerVerdict
	// Remedies are commands where there is one.
	Remedies []string
	// Pastes are texts that a file needs, where a file decides.
	Pastes []Paste
	// Registries that sandboxes of a turn may read packages from.
	Registries []EffectiveRegistry

	own ownJob
}

// Paste is text for a file, and where that file is.
type Paste struct{ Where, Text string }

// RunnerVerdict is what placement says of one runner.
type RunnerVerdict struct {
	Runner   protocol.RunnerID
	Name     string
	Eligible bool
	Reasons  []string
}

// Explain takes the id of a turn, of an attempt or of a grant.
func (e *Engine) Explain(ctx context.Context, c store.Caller, id string) (Explanation, error) {
	kind, _, _ := strings.Cut(id, "_")
	var x Explanation
	var of session.Turn
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		switch kind {
		case "trn":
			turn, err := protocol.ParseID[protocol.TurnKind](id)
			if err != nil {
				return err
			}
			t, err := tx.Turn(turn)
			if err != nil {
				return err
			}
			of = t
			if x, err = e.explainTurn(tx, t); err != nil {
				return err
			}
			x.Pastes, err = e.mendPaths(tx, t)
			return err
		case "att":
			attempt, err := protocol.ParseID[protocol.AttemptKind](id)
			if err != nil {
				return err
			}
			a, err := tx.Attempt(attempt)
			if err != nil {
				return err
			}
			x, err = e.explainAttempt(tx, a)
			return err
		case "grt":
			grant, err := protocol.ParseID[protocol.GrantKind](id)
			if err != nil {
				return err
			}
			x, err = explainGrant(tx, grant)
			return err
		}
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is neither a turn (trn_…) nor an attempt (att_…) nor a grant (grt_…)", id)
	})
	if err == nil {
		e.explainAllocation(ctx, &x)
	}
	if err == nil && of.ID != "" {
		x.Registries, err = e.egressOf(ctx, c, of)
	}
	return x, err
}

func (e *Engine) explainTurn(tx *store.Tx, t session.Turn) (Explanation, error) {
	x := Explanation{State: string(t.State), Waited: tx.Now.Sub(t.QueuedAt)}
	var err error
	switch t.State {
	case session.Queued:
		err = e.explainQueued(tx, t, &x)
	case session.RunningModel:
		if t.Attempt == "" {
			x.WaitingFor = "the answer of the model"
		} else if x, err = e.explainOf(tx, t.Attempt, x); err != nil {
			return x, err
		}
		err = explainUnreached(tx, t, &x)
	case session.WaitingApproval:
		err = explainApproval(tx, t, &x)
	case session.WaitingReconciliation:
		x.WaitingFor = "evidence of what became of an action, until " + t.ReconcileDeadline.UTC().Format(time.RFC3339)
		x.Remedies = []string{"bivouac edge list", "bivouac unknown"}
	case session.Received:
		x, err = e.explainOf(tx, t.Attempt, x)
	case session.WaitingAction, session.RunningAction:
		err = e.explainAction(tx, t, &x)
	default:
		x.Waited, x.WaitingFor = 0, "nothing: it ended"
		if t.Reason != "" {
			x.WaitingFor += " with " + t.Reason + ": " + t.Message
		}
		x.WaitingFor += "\n" + usageSentence(t)
		if x.Remedies, err = remediesOf(tx, t); err == nil {
			err = explainDenials(tx, t, &x)
		}
		if err == nil {
			err = explainRefused(tx, t, &x)
		}
	}
	return x, err
}

// explainUnreached says so where the newest thing that happened in a turn is that the
// broker was not reached: who did not reach it decides where to look.
func explainUnreached(tx *store.Tx, t session.Turn, x *Explanation) error {
	newest, err := tx.NewestEventsOfTurn(t.ID, 0, 3)
	for _, e := range newest {
		if e.Type == session.ModelCalled && e.Data["retry"] != "" {
			continue // the next try
		}
		if e.Type != session.ModelFailed || e.Data[session.DataUnreachable] == "" {
			break
		}
		if e.Attempt == "" {
			x.WaitingFor = "the broker, which the server does not reach"
			x.Remedies = []string{"where the broker is: bivouac-broker run, or bivouac-broker doctor", "bivouac doctor"}
			break
		}
		name := "its machine"
		if a, err := tx.Attempt(e.Attempt); err == nil {
			if r, err := tx.Runner(a.Runner); err == nil {
				name = fmt.Sprintf("%q", r.Name)
			}
		}
		x.WaitingFor = "the broker, which " + name + " does not reach"
		x.Remedies = []string{"on that machine: bivouac-edge doctor", "where the broker is: bivouac-broker doctor"}
		break
	}
	return err
}

// explainDenials names the people who denied what an ended turn asked for.
func explainDenials(tx *store.Tx, t session.Turn, x *Explanation) error {
	approvals, err := tx.ApprovalsOfTurn(t.ID)
	if err != nil {
		return err
	}
	for _, a := range approvals {
		if a.State != session.ApprovalDenied {
			continue
		}
		by := a.DecidedBy.String()
		if p, err := tx.Principal(a.DecidedBy); err == nil {
			by = p.Name
		} else if !notFound(err) {
			return err
		}
		x.WaitingFor += fmt.Sprintf("\n%s was denied by %s", a.Tool, by)
	}
	return nil
}

// mendPaths are the path entries that a turn, or an action of it, was refused for
// the lack of. Only who manages the tenant is told where they lie. The code of a
// refusal by the broker is the engine's own record: no answer of an upstream is
// read as one.
func (e *Engine) mendPaths(tx *store.Tx, t session.Turn) ([]Paste, error) {
	directory := ""
	if tx.Caller().Admin() {
		directory = e.view.pathsDirectory()
	}
	var pastes []Paste
	add := func(text string) {
		p, ok := refused.Parse(text)
		if !ok {
			return
		}
		var paste Paste
		if paste.Where, paste.Text = p.Mend(directory); !slices.Contains(pastes, paste) {
			pastes = append(pastes, paste)
		}
	}
	if t.Reason == reasonPolicy {
		add(t.Message)
	}
	actions, err := tx.ActionsOfTurn(t.ID)
	for _, a := range actions {
		var r runtimev1.ToolResult
		if a.Code == string(protocol.CodePolicyDenied) && a.Evidence == refusedUnsent && proto.Unmarshal(a.Result, &r) == nil {
			add(r.GetText())
		}
	}
	return pastes, err
}

func (e *Engine) explainQueued(tx *store.Tx, t session.Turn, x *Explanation) error {
	position, err := tx.QueuePosition(t.ID)
	if err != nil {
		return err
	}
	active, err := tx.ActiveTurn(t.Session)
	switch {
	case err == nil:
		x.WaitingFor = fmt.Sprintf("turn %s of the same session, which is %s; it is number %d in the queue", active.ID, active.State, position)
		x.Remedies = []string{"bivouac explain " + active.ID.String(), "bivouac cancel " + active.ID.String()}
		return nil
	case !notFound(err):
		return err
	}
	if _, err := e.view.current(tx.Now); err != nil {
		x.WaitingFor = err.Error()
		x.Remedies = []string{"bivouac-broker run"}
		return nil
	}
	s, err := tx.Session(t.Session)
	if err != nil {
		return err
	}
	uses, err := e.quotasOf(tx, t.Tenant, t.Principal, s.Agent)
	if err != nil {
		return err
	}
	if held := e.heldBy(uses, tx); held != "" {
		x.WaitingFor = held
		x.Remedies = []string{"bivouac quota", "bivouac cancel " + t.ID.String()}
		return nil
	}
	x.WaitingFor = fmt.Sprintf("its activation; it is number %d in the queue", position)
	return nil
}

func explainApproval(tx *store.Tx, t session.Turn, x *Explanation) error {
	approvals, err := tx.ApprovalsOfTurn(t.ID)
	for _, a := range approvals {
		if a.State == session.ApprovalPending {
			x.WaitingFor = fmt.Sprintf("a person's decision about %s, until %s", a.Tool, a.ExpiresAt.UTC().Format(time.RFC3339))
			x.Remedies = []string{"bivouac approve " + a.ID.String(), "bivouac deny " + a.ID.String()}
		}
	}
	return err
}

func (e *Engine) explainAction(tx *store.Tx, t session.Turn, x *Explanation) error {
	actions, err := tx.ActionsOfTurn(t.ID)
	if err != nil {
		return err
	}
	for _, a := range actions {
		if a.State != session.Intended && a.State != session.Dispatched {
			continue
		}
		x.WaitingFor = "the result of " + a.Tool
		if a.Attempt != "" {
			*x, err = e.explainOf(tx, a.Attempt, *x)
		}
	}
	return err
}

// explainOf explains a turn by the attempt that it waits for.
func (e *Engine) explainOf(tx *store.Tx, id protocol.AttemptID, x Explanation) (Explanation, error) {
	a, err := tx.Attempt(id)
	if err != nil {
		return x, err
	}
	by, err := e.explainAttempt(tx, a)
	x.WaitingFor, x.Runners, x.Remedies, x.own = by.WaitingFor, by.Runners, by.Remedies, by.own
	return x, err
}

func (e *Engine) explainAttempt(tx *store.Tx, a execution.Attempt) (Explanation, error) {
	x := Explanation{State: string(a.State), Waited: tx.Now.Sub(a.QueuedAt)}
	name := a.Runner.String()
	if r, err := tx.Runner(a.Runner); err == nil {
		name = fmt.Sprintf("%q", r.Name)
	} else if !notFound(err) {
		return x, err
	}
	var err error
	if x.own, err = jobOf(tx, a); err != nil {
		return x, err
	}
	switch a.State {
	case execution.AttemptOffered:
		x.WaitingFor = also("runner "+name+" to claim it", a.DeferReason)
		return x, explainOwners(tx, a, &x)
	case execution.AttemptClaimed, execution.AttemptRunning:
		x.WaitingFor = "the result from runner " + name
		return x, explainOwners(tx, a, &x)
	case execution.AttemptSuspect:
		x.WaitingFor = fmt.Sprintf("runner %s, which has not renewed its lease; it goes elsewhere %s after its last renewal", name, a.Retention)
		x.Remedies = []string{"on that machine: bivouac-edge doctor"} // it may run, and only its network be gone
	case execution.AttemptQueued:
		if err := e.rank(tx, a, &x); err != nil {
			return x, err
		}
		return x, explainOwners(tx, a, &x)
	default:
		x.Waited, x.WaitingFor = 0, "nothing: it ended"
		if a.Reason != "" {
			x.WaitingFor += " with " + a.Reason + ": " + a.Message
		}
		return x, explainTurnsEnd(tx, a, &x)
	}
	return x, nil
}

// rank asks placement again, with the fleet that the caller may see.
func (e *Engine) rank(tx *store.Tx, a execution.Attempt, x *Explanation) error {
	fleet, err := e.fleetOf(tx, []execution.Attempt{a})
	if err != nil {
		return err
	}
	r := placement.Rank(a, fleet)
	x.WaitingFor = "a runner: " + r.Summary()
	if len(r.Candidates) > 0 {
		x.WaitingFor = "the scheduler to offer it"
		if a.DeferReason != "" { // the machine's own words
			x.WaitingFor = "a runner: " + a.DeferReason
		}
	}
	x.Remedies = r.Remedies()
	for _, v := range r.Verdicts {
		verdict := RunnerVerdict{Runner: v.Runner, Name: v.Name, Eligible: v.Eligible()}
		for _, reason := range v.Reasons {
			verdict.Reasons = append(verdict.Reasons, reason.Text)
		}
		x.Runners = append(x.Runners, verdict)
	}
	if len(r.Candidates) == 0 {
		return e.explainAbsent(tx, a, fleet, x)
	}
	return nil
}
