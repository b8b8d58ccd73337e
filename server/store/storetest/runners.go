package storetest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

func principals(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	byToken := func(hash []byte) error {
		return s.View(t.Context(), loop, func(tx *store.Tx) error {
			p, ten, err := tx.PrincipalByToken(hash)
			if err == nil && (p.ID != x.User || ten.ID != x.Tenant || ten.Name != "red") {
				t.Errorf("%+v of %+v", p, ten)
			}
			return err
		})
	}
	token := hash("red" + "user")
	if err := byToken(token); err != nil {
		t.Error(err)
	}
	wantCode(t, "another token", byToken(hash("guess")), protocol.CodeNotFound)
	update(t, s, loop, func(tx *store.Tx) error { // without a token, as a channel's
		return tx.InsertPrincipal(policy.Principal{ID: id[protocol.PrincipalID](), Tenant: x.Tenant, Name: "service"})
	})
	wantCode(t, "no token", byToken(nil), protocol.CodeNotFound)
	wantCode(t, "a name twice", attempt(s, func(tx *store.Tx) error {
		return tx.InsertPrincipal(policy.Principal{ID: id[protocol.PrincipalID](), Tenant: x.Tenant, Name: "red-user"})
	}), protocol.CodeAlreadyExists)
	update(t, s, x.admin(), func(tx *store.Tx) error { return tx.DisablePrincipal(x.User) })
	wantCode(t, "a disabled one", byToken(token), protocol.CodeNotFound)
	update(t, s, loop, func(tx *store.Tx) error {
		again, err := tx.EnsureTenant("red")
		if again.ID != x.Tenant {
			t.Error("a second tenant of one name")
		}
		return err
	})
}

func agents(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	put := func(digest string) (d policy.Definition, changed bool) {
		update(t, s, x.admin(), func(tx *store.Tx) (err error) {
			d, changed, err = tx.PutDefinition(policy.Definition{Tenant: x.Tenant, Name: "coder", Digest: digest, Source: []byte(digest), CreatedBy: x.Admin})
			return err
		})
		return d, changed
	}
	for i, try := range []struct {
		digest  string
		version int
		changed bool
	}{{"one", 1, true}, {"one", 1, false}, {"two", 2, true}, {"one", 3, true}} {
		if d, changed := put(try.digest); d.Version != try.version || changed != try.changed || d.CreatedAt.IsZero() {
			t.Errorf("%d: version %d, changed %v", i, d.Version, changed)
		}
	}
	view(t, s, x.user(), func(tx *store.Tx) error {
		current, err := tx.Definition(x.Tenant, "coder", "")
		if current.Version != 3 {
			t.Errorf("current version %d", current.Version)
		}
		old, err2 := tx.Definition(x.Tenant, "coder", "two")
		if old.Version != 2 || string(old.Source) != "two" {
			t.Errorf("by digest: %+v", old)
		}
		_, err3 := tx.Definition(x.Tenant, "coder", "three")
		wantCode(t, "another digest", err3, protocol.CodeNotFound)
		all, err4 := tx.Definitions()
		if len(all) != 2 || all[0].Name != "assistant" || all[1].Version != 3 {
			t.Errorf("%+v", all)
		}
		for _, e := range []error{err2, err4} {
			if err == nil {
				err = e
			}
		}
		return err
	})
	update(t, s, x.user(), func(tx *store.Tx) error { // INV-16
		i, err := tx.EnsureInstance(x.Tenant, x.User, "assistant")
		if i.ID != x.Instance || i.Generation != 1 {
			t.Errorf("a second instance: %+v", i)
		}
		raised, err2 := tx.RaiseGeneration(i.ID)
		if raised.Generation != 2 {
			t.Errorf("generation %d", raised.Generation)
		}
		if err == nil {
			err = err2
		}
		return err
	})
}

func runners(t *testing.T, s *store.Store) {
	x, y := build(t, s, "red"), build(t, s, "blue")
	seen := func(c store.Caller) (n int) {
		view(t, s, c, func(tx *store.Tx) error {
			all, err := tx.ActiveRunners()
			n = len(all)
			return err
		})
		return n
	}
	if a, b, c, d := seen(x.user()), seen(x.bystander()), seen(x.admin()), seen(loop); a != 1 || b != 1 || c != 2 || d != 4 {
		t.Errorf("runners seen: user %d, bystander %d, admin %d, loop %d", a, b, c, d)
	}
	bind := execution.Binding{Tenant: x.Tenant, Principal: x.Bystander, Runner: x.Runner, Actions: []string{"files.read"}}
	put := func(c store.Caller, b execution.Binding) (out execution.Binding, err error) {
		err = s.Update(t.Context(), c, func(tx *store.Tx) (err error) { out, err = tx.PutBinding(b); return err })
		return out, err
	}
	_, err := put(x.bystander(), bind)
	wantCode(t, "a machine of another is not bound by who wants it", err, protocol.CodeNotFound)
	across := bind
	across.Principal = y.User
	if _, err := put(x.user(), across); err == nil {
		t.Error("a principal of another tenant was bound")
	}
	made, err := put(x.user(), bind)
	if err != nil || made.ID.IsZero() {
		t.Fatal(made, err)
	}
	if seen(x.bystander()) != 2 {
		t.Error("a bound principal does not see the machine")
	}
	err = s.Update(t.Context(), x.bystander(), func(tx *store.Tx) error {
		return tx.SaveRunner(execution.Runner{ID: x.Runner, State: execution.RunnerRevoked}, execution.RunnerActive)
	})
	wantCode(t, "a bound principal revokes the machine", err, protocol.CodePermissionDenied)
	bind.Actions = []string{"files.read", "files.list"}
	if again, err := put(x.admin(), bind); err != nil || again.ID != made.ID || len(again.Actions) != 2 {
		t.Errorf("bound again: %+v, %v", again, err)
	}
	update(t, s, x.bystander(), func(tx *store.Tx) error {
		all, err := tx.BindingsOf(x.Bystander)
		if len(all) != 1 || len(all[0].Actions) != 2 {
			t.Errorf("%+v", all)
		}
		if err != nil {
			return err
		}
		return tx.RemoveBinding(made.ID)
	})
	if seen(x.bystander()) != 1 {
		t.Error("a removed binding still shows the machine")
	}
	if after, err := put(x.user(), bind); err != nil || after.ID == made.ID {
		t.Errorf("a new binding after a removed one: %+v, %v", after, err)
	}
	wantCode(t, "a key twice", attempt(s, func(tx *store.Tx) error {
		return tx.InsertRunner(execution.Runner{ID: id[protocol.RunnerID](), Tenant: x.Tenant, Owner: x.User,
			Thumbprint: "key of " + x.Runner.String(), State: execution.RunnerActive})
	}), protocol.CodeAlreadyExists)
	update(t, s, x.user(), func(tx *store.Tx) error {
		return tx.SaveRunner(execution.Runner{ID: x.Runner, State: execution.RunnerRevoked}, execution.RunnerActive)
	})
	if seen(x.admin()) != 1 {
		t.Error("a revoked runner is listed")
	}
}

// workloads: a node is one runner's until that one has left or was freed after its end.
func workloads(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	machine := func(workload string) error {
		return attempt(s, func(tx *store.Tx) error {
			n := id[protocol.RunnerID]()
			return tx.InsertRunner(execution.Runner{ID: n, Tenant: x.Tenant, Owner: x.User, Thumbprint: n.String(), State: execution.RunnerActive, Workload: workload})
		})
	}
	for range 2 { // machines of codes have none
		if err := machine(""); err != nil {
			t.Fatal(err)
		}
	}
	node := "node of " + x.Runner.String()
	ends := func(next execution.RunnerState) {
		update(t, s, loop, func(tx *store.Tx) error {
			r, err := tx.RunnerOfWorkload(node)
			if err != nil {
				return err
			}
			r.State = next
			return tx.SaveRunner(r, execution.RunnerActive)
		})
	}
	wantCode(t, "a second machine of an active one's node", machine(node), protocol.CodeAlreadyExists)
	wantCode(t, "freeing an active one", attempt(s, func(tx *store.Tx) error { return tx.FreeWorkload(x.Runner) }), protocol.CodeFailedPrecondition)
	ends(execution.RunnerRevoked)
	wantCode(t, "a second machine of a revoked one's node", machine(node), protocol.CodeAlreadyExists)
	update(t, s, x.user(), func(tx *store.Tx) error { return tx.FreeWorkload(x.Runner) })
	if err := machine(node); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
	ends(execution.RunnerLeft)
	if err := machine(node); err != nil {
		t.Errorf("after one that left: %v", err)
	}
}

// connections: the epoch rises by compare-and-set.
func connections(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	other := id[protocol.ReplicaID]()
	take := func(r protocol.ReplicaID, last int64) (c execution.Connection, err error) {
		err = attempt(s, func(tx *store.Tx) (err error) {
			c, err = tx.TakeConnection(execution.Connection{Runner: x.Runner, Replica: r, ExpiresAt: tx.Now.Add(time.Minute)}, last)
			return err
		})
		return c, err
	}
	_, err := take(other, 0)
	wantCode(t, "as the first, when there is one", err, protocol.CodeConflict)
	won := make(chan int64, 4)
	var group sync.WaitGroup
	for range cap(won) {
		group.Go(func() {
			if c, err := take(other, 1); err == nil {
				won <- c.Epoch
			} else {
				wantCode(t, "the loser", err, protocol.CodeConflict)
			}
		})
	}
	group.Wait()
	if len(won) != 1 || <-won != 2 {
		t.Fatal("one connection takes the epoch")
	}
	attached := func() (yes bool) {
		view(t, s, loop, func(tx *store.Tx) error {
			c, err := tx.Connection(x.Runner)
			yes = c.Attached(tx.Now)
			return err
		})
		return yes
	}
	update(t, s, loop, func(tx *store.Tx) error { return tx.ReleaseConnection(x.Runner, 1) })
	if !attached() {
		t.Error("an old epoch released the row")
	}
	update(t, s, loop, func(tx *store.Tx) error { return tx.ReleaseConnection(x.Runner, 2) })
	if attached() {
		t.Error("the epoch did not release its row")
	}
	renew := func(r protocol.ReplicaID) (lost []protocol.RunnerID) {
		update(t, s, loop, func(tx *store.Tx) (err error) {
			lost, err = tx.RenewConnections(r, []protocol.RunnerID{x.Runner, x.OtherRunner}, tx.Now.Add(time.Minute))
			return err
		})
		return lost
	}
	if lost := renew(x.Replica); attached() || !slices.Contains(lost, x.Runner) {
		t.Errorf("the replica that lost the row renewed it, or does not learn of it: %v", lost)
	}
	if lost := renew(other); !attached() || slices.Contains(lost, x.Runner) {
		t.Errorf("the replica did not renew its row, or lost it: %v", lost)
	}
}

func mail(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	update(t, s, loop, func(tx *store.Tx) error {
		for i := range 3 {
			if seq, err := tx.PutMail(execution.MailboxItem{Runner: x.Runner, Body: []byte{byte(i)}}); err != nil || seq != int64(i+2) {
				t.Errorf("mail %d: %v", seq, err)
			}
		}
		return nil
	})
	read := func(after int64) (seqs []int64) {
		view(t, s, x.runner(), func(tx *store.Tx) error {
			all, err := tx.Mail(x.Runner, after, 0)
			for _, m := range all {
				seqs = append(seqs, m.Seq)
			}
			return err
		})
		return seqs
	}
	if got := read(2); len(got) != 2 || got[0] != 3 {
		t.Errorf("after 2: %v", got)
	}
	update(t, s, x.runner(), func(tx *store.Tx) error { return tx.AckMail(x.Runner, 3) })
	update(t, s, x.runner(), func(tx *store.Tx) error { return tx.AckMail(x.Runner, 1) }) // late and harmless
	if got := read(0); len(got) != 1 || got[0] != 4 {
		t.Errorf("after the acknowledgement: %v", got)
	}
	update(t, s, loop, func(tx *store.Tx) error {
		if seq, err := tx.PutMail(execution.MailboxItem{Runner: x.Runner}); err != nil || seq != 5 {
			t.Errorf("a sequence is never given twice: %d, %v", seq, err)
		}
		r, err := tx.Runner(x.Runner)
		if r.MailboxSeq != 5 || r.AckedSeq != 3 {
			t.Errorf("given %d, acknowledged %d", r.MailboxSeq, r.AckedSeq)
		}
		return err
	})
}

func joinCodes(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	code := hash("red code")
	use := func(code []byte, key string, r protocol.RunnerID) error {
		return attempt(s, func(tx *store.Tx) error { return tx.UseJoinCode(code, key, r) })
	}
	wantCode(t, "another code", use(hash("guess"), "key", x.Runner), protocol.CodeNotFound)
	wantCode(t, "without a key", use(code, "", x.Runner), protocol.CodeInvalidArgument)
	for range 2 { // the answer may have been lost: the same key repeats
		if err := use(code, "key", x.Runner); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, "another key", use(code, "other key", x.OtherRunner), protocol.CodeFailedPrecondition)
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.InsertJoinCode(execution.JoinCode{Hash: hash("old"), Tenant: x.Tenant, Principal: x.User, ExpiresAt: tx.Now})
	})
	wantCode(t, "an expired one", use(hash("old"), "key", x.Runner), protocol.CodeFailedPrecondition)
	view(t, s, x.user(), func(tx *store.Tx) error {
		c, err := tx.JoinCode(code)
		if c.UsedAt.IsZero() || c.Thumbprint != "key" || c.Runner != x.Runner {
			t.Errorf("%+v", c)
		}
		return err
	})
}
