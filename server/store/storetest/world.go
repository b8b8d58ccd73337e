package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// side is one tenant with one row of everything.
type side struct {
	Name                   string
	Tenant                 protocol.TenantID
	User, Admin, Bystander protocol.PrincipalID
	Replica                protocol.ReplicaID
	Instance               protocol.InstanceID
	// Session is open; Old is past its lifetime; Drained is closing without turns.
	Session, Old, Drained protocol.SessionID
	// Done completed, Active waits for approval with its owner row expired, Next
	// waits in the queue past its deadline.
	Done, Active, Next protocol.TurnID
	// Lost is UNKNOWN, Asked waits for Pending, Agreed has Approved, Device is
	// dispatched to Running.
	Lost, Asked, Agreed, Device protocol.ActionID
	Pending, Approved, Late     protocol.ApprovalID
	// Offered is of the turn Active and is offered to Runner; Running is claimed.
	Offered, Running    protocol.AttemptID
	Runner, OtherRunner protocol.RunnerID
	Binding             protocol.BindingID
	Grant               protocol.GrantID
	Slice               protocol.SliceID
	Cleanup             protocol.CleanupID
	Artifact            string
	Fence, AttemptFence protocol.Fence
}

// nonce of the supervisor that claimed Running.
const nonce = "boot-1"

// user, admin and runner are the callers of a side.
func (x *side) user() store.Caller      { return store.AsPrincipal(x.Tenant, x.User, false) }
func (x *side) admin() store.Caller     { return store.AsPrincipal(x.Tenant, x.Admin, true) }
func (x *side) bystander() store.Caller { return store.AsPrincipal(x.Tenant, x.Bystander, false) }
func (x *side) runner() store.Caller    { return store.AsRunner(x.Tenant, x.Runner) }
func (x *side) otherRunner() store.Caller {
	return store.AsRunner(x.Tenant, x.OtherRunner)
}

// ghost is a side without a single row.
func ghost(name string) *side {
	return &side{
		Name: name, Tenant: id[protocol.TenantID](), User: id[protocol.PrincipalID](), Admin: id[protocol.PrincipalID](),
		Bystander: id[protocol.PrincipalID](), Replica: id[protocol.ReplicaID](), Instance: id[protocol.InstanceID](),
		Session: id[protocol.SessionID](), Old: id[protocol.SessionID](), Drained: id[protocol.SessionID](),
		Done: id[protocol.TurnID](), Active: id[protocol.TurnID](), Next: id[protocol.TurnID](),
		Lost: id[protocol.ActionID](), Asked: id[protocol.ActionID](), Agreed: id[protocol.ActionID](), Device: id[protocol.ActionID](),
		Pending: id[protocol.ApprovalID](), Approved: id[protocol.ApprovalID](), Late: id[protocol.ApprovalID](),
		Offered: id[protocol.AttemptID](), Running: id[protocol.AttemptID](),
		Runner: id[protocol.RunnerID](), OtherRunner: id[protocol.RunnerID](), Binding: id[protocol.BindingID](),
		Grant: id[protocol.GrantID](), Slice: id[protocol.SliceID](), Cleanup: id[protocol.CleanupID](),
		Artifact: digest("artifact of " + name), Fence: 1<<32 | 1, AttemptFence: 1<<32 | 1,
	}
}

// digest and hash name things of a side by words.
func digest(s string) string { return hex.EncodeToString(hash(s)) }

func hash(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}

// build makes a side with all its rows.
func build(t *testing.T, s *store.Store, name string) *side {
	t.Helper()
	x := ghost(name)
	update(t, s, loop, func(tx *store.Tx) error {
		for _, part := range []func(*store.Tx) error{x.people, x.machines, x.conversation, x.work, x.authority} {
			if err := part(tx); err != nil {
				return err
			}
		}
		return nil
	})
	return x
}

func (x *side) people(tx *store.Tx) error {
	ten, err := tx.EnsureTenant(x.Name)
	if err != nil {
		return err
	}
	x.Tenant = ten.ID
	for who, p := range map[string]protocol.PrincipalID{"user": x.User, "admin": x.Admin, "bystander": x.Bystander} {
		if err := tx.InsertPrincipal(policy.Principal{ID: p, Tenant: x.Tenant, Name: x.Name + "-" + who, Kind: "user",
			Admin: who == "admin", TokenHash: hash(x.Name + who), CreatedAt: tx.Now}); err != nil {
			return err
		}
	}
	if _, _, err := tx.PutDefinition(policy.Definition{Tenant: x.Tenant, Name: "assistant", Digest: digest("hcl"),
		Filename: "assistant.hcl", Source: []byte("agent {}"), CreatedAt: tx.Now, CreatedBy: x.Admin}); err != nil {
		return err
	}
	i, err := tx.EnsureInstance(x.Tenant, x.User, "assistant")
	x.Instance = i.ID
	return err
}

func (x *side) machines(tx *store.Tx) error {
	for r, owner := range map[protocol.RunnerID]protocol.PrincipalID{x.Runner: x.User, x.OtherRunner: x.Bystander} {
		if err := tx.InsertRunner(execution.Runner{ID: r, Tenant: x.Tenant, Owner: owner, Name: "laptop", Thumbprint: "key of " + r.String(),
			PublicKey: []byte("key"), State: execution.RunnerActive, EnrolledAt: tx.Now, Workload: "node of " + r.String()}); err != nil {
			return err
		}
	}
	if _, err := tx.PutBinding(execution.Binding{ID: x.Binding, Tenant: x.Tenant, Principal: x.User, Runner: x.Runner, Actions: []string{"turn"}}); err != nil {
		return err
	}
	if _, err := tx.TakeConnection(execution.Connection{Runner: x.Runner, Replica: x.Replica, BootNonce: "d", Transport: "http/3",
		ExpiresAt: tx.Now.Add(time.Minute)}, 0); err != nil {
		return err
	}
	return tx.InsertJoinCode(execution.JoinCode{Hash: hash(x.Name + " code"), Tenant: x.Tenant, Principal: x.User, Name: "laptop",
		CreatedAt: tx.Now, ExpiresAt: tx.Now.Add(time.Minute)})
}

func (x *side) newSession(tx *store.Tx, id protocol.SessionID, key string, expires time.Time) error {
	return tx.InsertSession(session.Session{ID: id, Tenant: x.Tenant, Principal: x.User, Instance: x.Instance, Generation: 1,
		Agent: "assistant", AgentDigest: digest("hcl"), State: session.Open, CreatedAt: tx.Now, LastActiveAt: tx.Now,
		ExpiresAt: expires, IdempotencyKey: key})
}

func (x *side) newTurn(tx *store.Tx, s protocol.SessionID, id protocol.TurnID) (session.Turn, error) {
	workspace := ""
	if id == x.Done {
		workspace = digest("workspace of " + x.Name)
	}
	return tx.InsertTurn(session.Turn{ID: id, Session: s, MessageID: "message of " + id.String(), Prompt: "secret of " + x.Name,
		WorkspaceDigest: workspace,
		State:           session.Queued, QueuedAt: tx.Now, QueueDeadline: tx.Now.Add(-time.Second)})
}

// walk takes a turn through states, one write a step.
func walk(tx *store.Tx, t session.Turn, states ...session.TurnState) (session.Turn, error) {
	for _, next := range states {
		prior := t.State
		t.State = next
		if next == session.Received {
			t.ActivatedAt = tx.Now
		}
		if next.Terminal() {
			t.EndedAt = tx.Now
		}
		if err := tx.SaveTurn(t, prior, t.OwnerFence); err != nil {
			return t, fmt.Errorf("%s to %s: %w", prior, next, err)
		}
	}
	return t, nil
}

func (x *side) conversation(tx *store.Tx) error {
	if err := x.newSession(tx, x.Session, "key of "+x.Name, tx.Now.Add(time.Hour)); err != nil {
		return err
	}
	if err := x.newSession(tx, x.Old, "", tx.Now.Add(-time.Second)); err != nil {
		return err
	}
	if err := x.newSession(tx, x.Drained, "", time.Time{}); err != nil {
		return err
	}
	closing, err := tx.Session(x.Drained)
	if err != nil {
		return err
	}
	closing.State = session.Closing
	if err := tx.SaveSession(closing, session.Open); err != nil {
		return err
	}
	done, err := x.newTurn(tx, x.Session, x.Done)
	if err != nil {
		return err
	}
	if done, err = walk(tx, done, session.Received, session.RunningModel); err != nil {
		return err
	}
	done.PatchDigest = digest("patch of " + x.Name)
	if _, err = walk(tx, done, session.Completed); err != nil {
		return err
	}
	if _, err := tx.AppendEvents(x.Session,
		session.Event{Type: session.TurnQueued, Turn: x.Done, Payload: "secret of " + x.Name},
		session.Event{Type: session.TurnEnded, Turn: x.Done, Data: map[string]string{"state": "COMPLETED"}}); err != nil {
		return err
	}
	if err := tx.SaveProjection(x.Session, x.Done, done.N, []byte("secret of "+x.Name)); err != nil {
		return err
	}
	active, err := x.newTurn(tx, x.Session, x.Active)
	if err != nil {
		return err
	}
	active.Owner = x.Replica
	if active, err = walk(tx, active, session.Received); err != nil {
		return err
	}
	active.OwnerFence = x.Fence
	if err := tx.SaveTurn(active, active.State, 0); err != nil {
		return err
	}
	if _, err := walk(tx, active, session.RunningModel, session.WaitingAction, session.WaitingApproval); err != nil {
		return err
	}
	_, err = x.newTurn(tx, x.Session, x.Next)
	return err
}

// newAction stores an intent and takes it through states.
func (x *side) newAction(tx *store.Tx, id protocol.ActionID, first session.ActionState, states ...session.ActionState) error {
	a := session.Action{ID: id, Turn: x.Active, Session: x.Session, Tenant: x.Tenant, Principal: x.User, CallID: "c", Tool: "files.write",
		State: first, ResourceKey: "resource of " + x.Name, Fence: x.Fence, IntentAt: tx.Now, Arguments: `{"secret":"` + x.Name + `"}`}
	if err := tx.InsertAction(a); err != nil {
		return err
	}
	for _, next := range states {
		prior := a.State
		a.State = next
		if err := tx.SaveAction(a, prior, x.Fence); err != nil {
			return err
		}
	}
	return nil
}

func (x *side) newApproval(tx *store.Tx, id protocol.ApprovalID, of protocol.ActionID, expires time.Time) error {
	return tx.InsertApproval(session.Approval{ID: id, Action: of, State: session.ApprovalPending, Tool: "files.write",
		Digest: digest("subject of " + x.Name), CreatedAt: tx.Now, ExpiresAt: expires})
}

func (x *side) work(tx *store.Tx) error {
	if err := x.newAction(tx, x.Lost, session.Intended, session.Dispatched, session.Reconciling, session.ActionUnknown); err != nil {
		return err
	}
	if err := x.newAction(tx, x.Device, session.Intended, session.Dispatched); err != nil {
		return err
	}
	if err := x.newAction(tx, id[protocol.ActionID](), session.Intended); err != nil {
		return err
	}
	late := id[protocol.ActionID]()
	for a, p := range map[protocol.ActionID]protocol.ApprovalID{x.Asked: x.Pending, x.Agreed: x.Approved, late: x.Late} {
		if err := x.newAction(tx, a, session.AwaitingApproval); err != nil {
			return err
		}
		expires := tx.Now.Add(time.Hour)
		if p == x.Late {
			expires = tx.Now.Add(-time.Second)
		}
		if err := x.newApproval(tx, p, a, expires); err != nil {
			return err
		}
	}
	agreed, err := tx.Approval(x.Approved)
	if err != nil {
		return err
	}
	agreed.State, agreed.DecidedAt, agreed.DecidedBy = session.ApprovalApproved, tx.Now, x.User
	if err := tx.SaveApproval(agreed, session.ApprovalPending); err != nil {
		return err
	}
	if err := x.newAttempt(tx, x.Offered, execution.SubjectTurn, x.Active.String()); err != nil {
		return err
	}
	if err := x.newAttempt(tx, x.Running, execution.SubjectAction, x.Device.String()); err != nil {
		return err
	}
	claimed, err := tx.ClaimAttempt(x.Running, x.Runner, nonce)
	if err != nil {
		return err
	}
	x.AttemptFence = claimed.Fence
	return tx.PutRecords(x.Running, claimed.Fence, false, []store.Record{{Seq: 1, At: tx.Now, Body: []byte("secret of " + x.Name)}})
}

// newAttempt queues an attempt and offers it to the side's runner.
func (x *side) newAttempt(tx *store.Tx, id protocol.AttemptID, kind execution.SubjectKind, subject string) error {
	a := execution.Attempt{ID: id, Tenant: x.Tenant, Principal: x.User, SubjectKind: kind, SubjectID: subject, Number: 1,
		State: execution.AttemptQueued, QueuedAt: tx.Now, AuthorityTTL: 15 * time.Second, Retention: 10 * time.Minute}
	if err := tx.InsertAttempt(a); err != nil {
		return err
	}
	a.State, a.Runner, a.OfferedAt = execution.AttemptOffered, x.Runner, tx.Now
	a.Allocation = "bivouac-1"
	return tx.SaveAttempt(a, execution.AttemptQueued, 0)
}

func (x *side) authority(tx *store.Tx) error {
	if err := tx.InsertGrant(policy.Grant{ID: x.Grant, Tenant: x.Tenant, Principal: x.User, Agent: "assistant",
		Credentials: []string{"api"}, Sealed: []byte("age"), CreatedAt: tx.Now}); err != nil {
		return err
	}
	if _, err := tx.AddFloor(policy.Floor{Kind: policy.FloorTurn, ID: x.Done.String(), Minimum: 1}); err != nil {
		return err
	}
	if err := tx.InsertSlice(policy.Slice{ID: x.Slice, Tenant: x.Tenant, Turn: x.Active, BrokerBoot: "b", CeilingMicroUSD: 100}); err != nil {
		return err
	}
	if err := tx.InsertCleanup(policy.Cleanup{ID: x.Cleanup, Tenant: x.Tenant, Kind: "attempt", Subject: x.Running.String(),
		CreatedAt: tx.Now, NextAt: tx.Now}); err != nil {
		return err
	}
	if _, err := tx.PutArtifact(policy.Artifact{Digest: x.Artifact, Tenant: x.Tenant, Principal: x.User, Session: x.Session, Turn: x.Active,
		Kind: "workspace", Size: 7, CreatedAt: tx.Now}); err != nil {
		return err
	}
	if err := x.sealOld(tx); err != nil {
		return err
	}
	_, err := tx.PutMail(execution.MailboxItem{Runner: x.Runner, Attempt: x.Offered, Body: []byte("offer")})
	return err
}
