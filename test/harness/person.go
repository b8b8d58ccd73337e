package harness

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac/edge/workspace"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// Person is a principal with the product's own client of the public API. Its
// helpers fail the test on an error; what should be refused is called on Client.
type Person struct {
	*client.Client
	Name string

	w *World
}

// Person is a principal of the first tenant, made when it is new.
func (w *World) Person(name string) *Person {
	w.t.Helper()
	return w.PersonOf(firstTenant, name)
}

// PersonOf is a principal of any tenant; both are made when they are new. People
// of another tenant than the first are its admins.
func (w *World) PersonOf(tenant, name string) *Person {
	w.t.Helper()
	key := name
	if tenant != firstTenant {
		key = tenant + "/" + name
	}
	if p := w.people[key]; p != nil {
		return p
	}
	res, err := w.admin.Principals.AddPrincipal(w.t.Context(), &apiv1.AddPrincipalRequest{Tenant: tenant, Name: name, Admin: tenant != firstTenant})
	w.must(err)
	p := w.login(name, res.GetToken())
	w.people[key] = p
	if tenant != firstTenant {
		p.PutCredential(modelCredential, ModelKey)
	}
	return p
}

// Client of a principal of the first tenant.
func (w *World) Client(principal string) *client.Client {
	w.t.Helper()
	return w.Person(principal).Client
}

func (w *World) login(name, token string) *Person {
	w.t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c, err := client.New(client.Config{URL: publicURL, Token: token,
		HTTP: &http.Client{Transport: &http.Transport{Protocols: protocols, DialContext: w.dialPublic}}})
	w.must(err)
	return &Person{Client: c, Name: name, w: w}
}

func (p *Person) ctx() context.Context { return p.w.t.Context() }

// Apply stores an agent definition.
func (p *Person) Apply(source string) {
	p.w.t.Helper()
	_, err := p.Agents.ApplyAgent(p.ctx(), &apiv1.ApplyAgentRequest{Filename: "agent.hcl", Source: source})
	p.w.must(err)
}

// Open begins a session with an agent.
func (p *Person) Open(agent string) (session string) {
	p.w.t.Helper()
	res, err := p.Sessions.CreateSession(p.ctx(), &apiv1.CreateSessionRequest{Agent: agent})
	p.w.must(err)
	return res.GetSession().GetId()
}

// Submit queues a prompt and returns the turn's id.
func (p *Person) Submit(session, message, prompt string) (turn string) {
	p.w.t.Helper()
	return p.SubmitOn(session, message, prompt, "")
}

// SubmitOn is Submit for a turn that starts from an uploaded workspace.
func (p *Person) SubmitOn(session, message, prompt, workspace string) (turn string) {
	p.w.t.Helper()
	res, err := p.Turns.SubmitTurn(p.ctx(), &apiv1.SubmitTurnRequest{
		SessionId: session, MessageId: message, Prompt: prompt, WorkspaceDigest: workspace})
	p.w.must(err)
	return res.GetTurn().GetId()
}

// Turn as it is now.
func (p *Person) Turn(id string) *apiv1.Turn {
	p.w.t.Helper()
	res, err := p.Turns.GetTurn(p.ctx(), &apiv1.GetTurnRequest{TurnId: id})
	p.w.must(err)
	return res.GetTurn()
}

// Await waits until a turn is in a state, and fails when it ended in another one.
func (p *Person) Await(turn, state string) (t *apiv1.Turn) {
	p.w.t.Helper()
	p.w.Until(turn+" is "+state, awaitLimit, func() bool {
		t = p.Turn(turn)
		if t.GetState() != state && t.GetEndedAt() != nil {
			p.w.t.Fatalf("%s ended as %s: %s: %s", turn, t.GetState(), t.GetReason(), t.GetMessage())
		}
		return t.GetState() == state
	})
	return t
}

// awaitLimit is how long anything may take that is waited for.
const awaitLimit = 2 * time.Hour

// Ended waits for the end of a turn by watching its session's events, as a
// person's terminal does.
func (p *Person) Ended(turn string) *apiv1.Turn {
	p.w.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx(), awaitLimit)
	defer cancel()
	now := p.Turn(turn)
	err := p.Watch(ctx, now.GetSessionId(), 0, func(m *apiv1.WatchEventsResponse) error {
		if e := m.GetEvent(); e.GetType() == "turn.ended" && e.GetTurnId() == turn {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		p.w.t.Fatalf("%s is %s and does not end: %v", turn, p.Turn(turn).GetState(), err)
	}
	return p.Turn(turn)
}

var errSeen = errors.New("what was waited for is there")

// Completed waits for the good end of a turn.
func (p *Person) Completed(turn string) *apiv1.Turn {
	p.w.t.Helper()
	t := p.Ended(turn)
	if t.GetState() != "COMPLETED" {
		p.w.t.Fatalf("%s ended as %s: %s: %s", turn, t.GetState(), t.GetReason(), t.GetMessage())
	}
	return t
}

// Attempts of a turn as they are now, oldest first.
func (p *Person) Attempts(turn string) []*apiv1.Attempt {
	p.w.t.Helper()
	return p.Turn(turn).GetAttempts()
}

// Events of a session, all of them, in order.
func (p *Person) EventsOf(session string) (all []*apiv1.Event) {
	p.w.t.Helper()
	for {
		after := int64(len(all))
		res, err := p.Events.ListEvents(p.ctx(), &apiv1.ListEventsRequest{SessionId: session, AfterSeq: after, Limit: 500})
		p.w.must(err)
		if len(res.GetEvents()) == 0 {
			return all
		}
		for i, e := range res.GetEvents() {
			if e.GetSeq() != after+int64(i)+1 { // INV-8
				p.w.t.Fatalf("event %d of %s follows on %d", e.GetSeq(), session, after+int64(i))
			}
		}
		all = append(all, res.GetEvents()...)
	}
}

// EventAt is when the newest event of a type happened in a session; data narrows
// it to events whose data contains the text.
func (p *Person) EventAt(session, kind, data string) time.Time {
	p.w.t.Helper()
	for _, e := range slices.Backward(p.EventsOf(session)) {
		if e.GetType() == kind && strings.Contains(e.GetData(), data) {
			return e.GetAt().AsTime()
		}
	}
	p.w.t.Fatalf("%s has no event %s with %q", session, kind, data)
	return time.Time{}
}

// AwaitApproval waits until somebody is asked for one.
func (p *Person) AwaitApproval() (a *apiv1.Approval) {
	p.w.t.Helper()
	p.w.Until("an approval is asked", 5*time.Minute, func() bool {
		res, err := p.Approvals.ListApprovals(p.ctx(), &apiv1.ListApprovalsRequest{})
		p.w.must(err)
		if len(res.GetApprovals()) > 0 {
			a = res.GetApprovals()[0]
		}
		return a != nil
	})
	return a
}

// Decide an approval by the digest that was shown.
func (p *Person) Decide(a *apiv1.Approval, approve bool) {
	p.w.t.Helper()
	_, err := p.Approvals.DecideApproval(p.ctx(), &apiv1.DecideApprovalRequest{ApprovalId: a.GetId(), Digest: a.GetDigest(), Approve: approve})
	p.w.must(err)
}

// Pack uploads a git folder as the command line does, and returns its digest.
func (p *Person) Pack(dir string) (digest string) {
	p.w.t.Helper()
	var b bytes.Buffer
	_, err := workspace.Pack(p.ctx(), dir, &b)
	p.w.must(err)
	digest, _, err = p.PutArtifact(p.ctx(), "workspace", bytes.NewReader(b.Bytes()))
	p.w.must(err)
	return digest
}

// Artifact reads a blob of this person.
func (p *Person) Artifact(digest string) string {
	p.w.t.Helper()
	var b bytes.Buffer
	p.w.must(p.GetArtifact(p.ctx(), digest, &b))
	return b.String()
}

// Runner of this person by its name, as the server sees it.
func (p *Person) Runner(name string) *apiv1.Runner {
	p.w.t.Helper()
	res, err := p.Runners.ListRunners(p.ctx(), &apiv1.ListRunnersRequest{})
	p.w.must(err)
	for _, r := range res.GetRunners() {
		if r.GetName() == name {
			return r
		}
	}
	p.w.t.Fatalf("there is no runner %q", name)
	return nil
}
