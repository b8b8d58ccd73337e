package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// columns: every field of every record comes back as it was stored. Each field
// gets a value of its own, so two exchanged columns are seen.
func columns(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	t.Run("principal", func(t *testing.T) { principalColumns(t, s, x) })
	t.Run("session", func(t *testing.T) { sessionColumns(t, s, x) })
	t.Run("turn", func(t *testing.T) { turnColumns(t, s, x) })
	t.Run("action", func(t *testing.T) { actionColumns(t, s, x) })
	t.Run("approval", func(t *testing.T) { approvalColumns(t, s, x) })
	t.Run("attempt", func(t *testing.T) { attemptColumns(t, s, x) })
	t.Run("runner", func(t *testing.T) { runnerColumns(t, s, x) })
	t.Run("others", func(t *testing.T) { otherColumns(t, s, x) })
}

// fill gives every field a value that no other field has.
func fill(v any) {
	n := int64(0)
	fillValue(reflect.ValueOf(v).Elem(), &n)
}

func fillValue(v reflect.Value, n *int64) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMicro(1_700_000_000_000_000 + *n).UTC()))
		return
	case time.Duration:
		v.SetInt(*n * int64(time.Microsecond))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(*n)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(fmt.Append(nil, "bytes ", *n))
			return
		}
		s := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range 2 {
			fillValue(s.Index(i), n)
		}
		v.Set(s)
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i), n)
		}
	default:
		panic("storetest: no value for " + v.Type().String())
	}
}

func same(t *testing.T, wrote, read any) {
	t.Helper()
	w, r := reflect.ValueOf(wrote), reflect.ValueOf(read)
	for i := range w.NumField() {
		if !reflect.DeepEqual(w.Field(i).Interface(), r.Field(i).Interface()) {
			t.Errorf("%s: wrote %v, read %v", w.Type().Field(i).Name, w.Field(i), r.Field(i))
		}
	}
}

func principalColumns(t *testing.T, s *store.Store, x *side) {
	var p policy.Principal
	fill(&p)
	p.ID, p.Tenant = id[protocol.PrincipalID](), x.Tenant
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertPrincipal(p); err != nil {
			return err
		}
		got, err := tx.Principal(p.ID)
		same(t, p, got)
		return err
	})
}

func sessionColumns(t *testing.T, s *store.Store, x *side) {
	var v session.Session
	fill(&v)
	v.ID, v.Tenant, v.Principal, v.Instance, v.State = id[protocol.SessionID](), x.Tenant, x.User, x.Instance, session.Open
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertSession(v); err != nil {
			return err
		}
		v.LastSeq, v.LastHash, v.Queued = 0, nil, 0 // the store's
		got, err := tx.Session(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		v.State, v.LastActiveAt, v.ExpiresAt, v.Generation = session.Closing, tx.Now, tx.Now.Add(1000), 77
		if err := tx.SaveSession(v, session.Open); err != nil {
			return err
		}
		got, err = tx.Session(v.ID)
		same(t, v, got)
		return err
	})
}

func turnColumns(t *testing.T, s *store.Store, x *side) {
	var v session.Turn
	fill(&v)
	v.ID, v.Session, v.Tenant, v.Principal, v.State = id[protocol.TurnID](), x.Old, x.Tenant, x.User, session.Queued
	update(t, s, loop, func(tx *store.Tx) error {
		inserted, err := tx.InsertTurn(v)
		if err != nil {
			return err
		}
		v.N = 1
		same(t, v, inserted)
		got, err := tx.Turn(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		var next session.Turn
		fill(&next)
		// What the queue bound stays.
		next.ID, next.Session, next.Tenant, next.Principal, next.N = v.ID, v.Session, v.Tenant, v.Principal, v.N
		next.MessageID, next.MessageDigest, next.Prompt, next.WorkspaceDigest, next.QueuedAt = v.MessageID, v.MessageDigest, v.Prompt, v.WorkspaceDigest, v.QueuedAt
		next.State, next.Reason, next.Answer, next.Snapshot, next.Loop = session.Received, "new reason", "new answer", []byte("new snapshot"), []byte("new loop")
		next.OwnerFence, next.EndedAt = v.OwnerFence+1, tx.Now
		if err := tx.SaveTurn(next, session.Queued, v.OwnerFence); err != nil {
			return err
		}
		got, err = tx.Turn(v.ID)
		same(t, next, got)
		return err
	})
}

func actionColumns(t *testing.T, s *store.Store, x *side) {
	var v session.Action
	fill(&v)
	v.ID, v.Turn, v.Session, v.Tenant, v.Principal, v.State = id[protocol.ActionID](), x.Active, x.Session, x.Tenant, x.User, session.Intended
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertAction(v); err != nil {
			return err
		}
		v.Resolution, v.ResolutionNote, v.ResolvedBy, v.ResolvedAt = "", "", "", time.Time{} // a person's, later
		got, err := tx.Action(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		next := v
		next.State, next.Fence, next.DispatchedAt, next.OutcomeAt = session.Dispatched, v.Fence+1, tx.Now, tx.Now.Add(1000)
		next.Destination, next.ResourceKey, next.IdempotencyKey, next.PreImageDigest = "d", "r", "i", "p"
		next.Attempt, next.Approval, next.SupersededBy = "at", "ap", "su"
		next.Result, next.Code, next.Evidence = []byte("result"), "code", "evidence"
		if err := tx.SaveAction(next, session.Intended, v.Fence); err != nil {
			return err
		}
		got, err = tx.Action(v.ID)
		same(t, next, got)
		return err
	})
}

func approvalColumns(t *testing.T, s *store.Store, x *side) {
	var v session.Approval
	fill(&v)
	v.ID, v.Action, v.Turn, v.Session, v.Tenant, v.Principal, v.State = id[protocol.ApprovalID](), x.Device, x.Active, x.Session, x.Tenant, x.User, session.ApprovalPending
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertApproval(v); err != nil {
			return err
		}
		decided, by, reason := v.DecidedAt, v.DecidedBy, v.Reason
		v.DecidedAt, v.DecidedBy, v.Reason, v.ConsumedBy, v.ConsumedAt = time.Time{}, "", "", "", time.Time{}
		got, err := tx.Approval(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		v.State, v.DecidedAt, v.DecidedBy, v.Reason = session.ApprovalDenied, decided, by, reason
		if err := tx.SaveApproval(v, session.ApprovalPending); err != nil {
			return err
		}
		got, err = tx.Approval(v.ID)
		same(t, v, got)
		return err
	})
}

func attemptColumns(t *testing.T, s *store.Store, x *side) {
	var v execution.Attempt
	fill(&v)
	v.ID, v.Tenant, v.Principal, v.State = id[protocol.AttemptID](), x.Tenant, x.User, execution.AttemptQueued
	v.Requirements.Runners = []protocol.RunnerID{x.Runner, x.OtherRunner}
	for i := range v.Requirements.Asked {
		v.Requirements.Asked[i].Runner = x.Runner
	}
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertAttempt(v); err != nil {
			return err
		}
		full := v
		v.Allocation, v.Allocations, v.AllocationAskedAt = "", 0, time.Time{} // an offer's
		v.BootNonce, v.Fence, v.AcceptedSeq = "", 0, 0                        // the claim's, and what follows it
		v.OfferedAt, v.ClaimedAt, v.StartedAt, v.RenewedAt, v.EndedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
		got, err := tx.Attempt(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		next := full
		next.State, next.Runner, next.BootNonce, next.ClaimedAt = execution.AttemptOffered, x.Runner, "", time.Time{}
		next.Requirements.OS, next.Reason, next.Work, next.Fence = "plan9", "new", []byte("new work"), 4
		if err := tx.SaveAttempt(next, execution.AttemptQueued, 0); err != nil {
			return err
		}
		got, err = tx.Attempt(v.ID)
		same(t, next, got)
		if err != nil {
			return err
		}
		return withoutWork(t, tx, next)
	})
}

// withoutWork: attempts with allocations, which a tick looks at again and again, come
// without their work, however large it is; one that is saved so keeps it.
func withoutWork(t *testing.T, tx *store.Tx, whole execution.Attempt) error {
	all, err := tx.AllocatedAttempts()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(a execution.Attempt) bool { return a.ID == whole.ID })
	if i < 0 {
		t.Fatal("it is not among those that have an allocation")
	}
	want := whole
	want.Work = nil
	same(t, want, all[i])
	if err := tx.SaveAttempt(all[i], all[i].State, all[i].Fence); err != nil {
		return err
	}
	got, err := tx.Attempt(whole.ID)
	same(t, whole, got)
	return err
}

func runnerColumns(t *testing.T, s *store.Store, x *side) {
	var v execution.Runner
	fill(&v)
	v.ID, v.Tenant, v.Owner, v.State = id[protocol.RunnerID](), x.Tenant, x.User, execution.RunnerActive
	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.InsertRunner(v); err != nil {
			return err
		}
		v.MailboxSeq, v.AckedSeq = 0, 0
		got, err := tx.Runner(v.ID)
		same(t, v, got)
		if err != nil {
			return err
		}
		v.Name, v.State, v.LastSeenAt, v.Facts.OS = "other", execution.RunnerLeft, tx.Now, "plan9"
		if err := tx.SaveRunner(v, execution.RunnerActive); err != nil {
			return err
		}
		got, err = tx.Runner(v.ID)
		same(t, v, got)
		return err
	})
}

func otherColumns(t *testing.T, s *store.Store, x *side) {
	update(t, s, loop, func(tx *store.Tx) error {
		var d policy.Definition
		fill(&d)
		d.Tenant, d.Version = x.Tenant, 1
		if _, _, err := tx.PutDefinition(d); err != nil {
			return err
		}
		same(t, d, must(tx.Definition(x.Tenant, d.Name, ""))(t))

		var c execution.Connection
		fill(&c)
		c.Runner = x.OtherRunner
		c, err := tx.TakeConnection(c, 0)
		if err != nil {
			return err
		}
		same(t, c, must(tx.Connection(c.Runner))(t))

		var m execution.MailboxItem
		fill(&m)
		m.Runner = x.OtherRunner
		if m.Seq, err = tx.PutMail(m); err != nil {
			return err
		}
		same(t, m, must(tx.Mail(m.Runner, 0, 0))(t)[0])

		var g policy.Grant
		fill(&g)
		g.Tenant, g.Principal, g.RevokedAt = x.Tenant, x.User, time.Time{}
		g.RevokedWhy, g.Receipt, g.Proof, g.ProvenAt = "", "", "", time.Time{}                      // come with the revocation
		g.Rotation, g.RotationAt, g.RotatedAt, g.RotationReceipt = "", time.Time{}, time.Time{}, "" // and these with a rotation
		if err := tx.InsertGrant(g); err != nil {
			return err
		}
		same(t, g, must(tx.Grant(g.ID))(t))

		var l policy.Slice
		fill(&l)
		l.Tenant, l.Turn = x.Tenant, x.Done
		if err := tx.InsertSlice(l); err != nil {
			return err
		}
		same(t, l, must(tx.Slice(l.ID))(t))

		var a policy.Artifact
		fill(&a)
		a.Tenant, a.Principal = x.Tenant, x.User
		if _, err := tx.PutArtifact(a); err != nil {
			return err
		}
		same(t, a, must(tx.Artifact(a.Digest))(t))

		var f policy.Floor
		fill(&f)
		f.ExpiresAt = tx.Now.Add(time.Hour)
		if f, err = tx.AddFloor(f); err != nil {
			return err
		}
		feed, _, err := tx.Floors(f.Seq-1, 0)
		if err != nil {
			return err
		}
		same(t, f, feed[0])

		var k policy.Cleanup
		fill(&k)
		k.Tenant, k.DoneAt, k.NextAt = x.Tenant, time.Time{}, tx.Now.Add(-time.Hour)
		if err := tx.InsertCleanup(k); err != nil {
			return err
		}
		same(t, k, must(tx.CleanupsDue(1))(t)[0])
		return nil
	})
}
