package storetest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

func grants(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	newer := id[protocol.GrantID]()
	standing := func() (g policy.Grant, err error) {
		err = s.View(t.Context(), x.user(), func(tx *store.Tx) (err error) {
			g, err = tx.StandingGrant(x.User, "assistant")
			return err
		})
		return g, err
	}
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.InsertGrant(policy.Grant{ID: newer, Tenant: x.Tenant, Principal: x.User, Agent: "assistant", CreatedAt: tx.Now.Add(time.Second)})
	})
	if g, err := standing(); err != nil || g.ID != newer {
		t.Errorf("the newest: %s, %v", g.ID, err)
	}
	inForce := func(when string, agent string, want ...protocol.GrantID) {
		t.Helper()
		view(t, s, x.user(), func(tx *store.Tx) error {
			all, err := tx.GrantsInForce(x.User, agent)
			var got []protocol.GrantID
			for _, g := range all {
				got = append(got, g.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: in force are %v, not %v", when, got, want)
			}
			return err
		})
	}
	inForce("two", "assistant", newer, x.Grant)
	inForce("another agent", "another")
	revoke := func(g protocol.GrantID) (out policy.Grant) {
		update(t, s, x.user(), func(tx *store.Tx) (err error) { out, err = tx.RevokeGrant(g, "lost laptop"); return err })
		return out
	}
	first := revoke(newer)
	if again := revoke(newer); first.RevokedAt.IsZero() || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("revoked at %v, then at %v", first.RevokedAt, again.RevokedAt)
	}
	// The first receipt is kept, and none of a grant in force; a later one beside it, where
	// it shows as gone what the first did not.
	keep := func(g protocol.GrantID, receipt string) {
		update(t, s, x.user(), func(tx *store.Tx) error { return tx.KeepReceipt(g, receipt) })
	}
	first1, still, gone := receipt(false, "first"), receipt(false, "again"), receipt(true, "gone")
	keep(newer, first1)
	keep(newer, still)
	keep(x.Grant, gone)
	view(t, s, x.user(), func(tx *store.Tx) error {
		g, err := tx.Grant(newer)
		if g.Receipt != first1 || g.Proof != "" || !g.ProvenAt.IsZero() || !strings.Contains(g.Pending(), "authority: first") {
			t.Errorf("before it is proven: %+v, pending %q", g, g.Pending())
		}
		return err
	})
	keep(newer, gone)
	keep(newer, receipt(true, "once more"))
	view(t, s, x.user(), func(tx *store.Tx) error {
		g, err := tx.Grant(newer)
		other, err2 := tx.Grant(x.Grant)
		if g.Receipt != first1 || g.RevokedWhy != "lost laptop" || other.Receipt != "" {
			t.Errorf("receipt %q why %q, of one in force %q", g.Receipt, g.RevokedWhy, other.Receipt)
		}
		if g.Proof != gone || g.ProvenAt.IsZero() || g.Pending() != "" || other.Proof != "" {
			t.Errorf("proof %q at %s, pending %q, of one in force %q", g.Proof, g.ProvenAt, g.Pending(), other.Proof)
		}
		return errors.Join(err, err2)
	})
	if g, err := standing(); err != nil || g.ID != x.Grant {
		t.Errorf("the one before: %s, %v", g.ID, err)
	}
	inForce("one", "assistant", x.Grant)
	revoke(x.Grant)
	if g, err := standing(); err != nil || g.ID != newer || g.RevokedAt.IsZero() {
		t.Errorf("none in force: %s revoked at %v, %v", g.ID, g.RevokedAt, err)
	}
	err := s.View(t.Context(), x.user(), func(tx *store.Tx) error { _, err := tx.StandingGrant(x.User, "another"); return err })
	wantCode(t, "never given", err, protocol.CodeNotFound)
	view(t, s, x.admin(), func(tx *store.Tx) error {
		alive, err := tx.Grants(false)
		all, err2 := tx.Grants(true)
		if len(alive) != 0 || len(all) != 2 {
			t.Errorf("%d alive of %d", len(alive), len(all))
		}
		if err == nil {
			err = err2
		}
		return err
	})
}

// rotations of one grant are one at a time, with a cleanup that goes on with each; a
// revoked grant has none. INV-18.
func rotations(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	begin := func() (g policy.Grant, err error) {
		err = s.Update(t.Context(), x.user(), func(tx *store.Tx) (err error) {
			g, err = tx.BeginRotation(x.Grant, id[protocol.CleanupID](), tx.Now.Add(time.Hour))
			return err
		})
		return g, err
	}
	get := func() (g policy.Grant) {
		view(t, s, x.user(), func(tx *store.Tx) (err error) { g, err = tx.Grant(x.Grant); return err })
		return g
	}
	debt := func() (n int) {
		view(t, s, loop, func(tx *store.Tx) (err error) { n, err = tx.CleanupDebt(); return err })
		return n
	}
	owed := debt()
	first, err := begin()
	if err != nil || first.Rotation == "" || first.RotationAt.IsZero() || debt() != owed+1 {
		t.Fatalf("%+v %v, %d owed", first, err, debt())
	}
	again, err := begin()
	if err != nil || again.Rotation != first.Rotation || debt() != owed+1 {
		t.Errorf("a second one beside it: %+v %v, %d owed", again, err, debt())
	}
	keep := func(r protocol.CleanupID) error {
		return attempt(s, func(tx *store.Tx) error { return tx.KeepRotated(x.Grant, r, []byte("new")) })
	}
	for _, other := range []protocol.CleanupID{id[protocol.CleanupID](), ""} {
		wantCode(t, "another's part", keep(other), protocol.CodeConflict)
	}
	if err := keep(first.Rotation); err != nil {
		t.Fatal(err)
	}
	if g := get(); string(g.Sealed) != "new" || g.RotatedAt.IsZero() || g.Rotation != first.Rotation {
		t.Errorf("kept: %+v", g)
	}
	update(t, s, loop, func(tx *store.Tx) error { return tx.EndRotation(x.Grant, first.Rotation, "signed") })
	wantCode(t, "it is over", attempt(s, func(tx *store.Tx) error { return tx.EndRotation(x.Grant, first.Rotation, "") }), protocol.CodeNotFound)
	if g := get(); g.Rotation != "" || !g.RotationAt.IsZero() || g.RotationReceipt != "signed" || string(g.Sealed) != "new" {
		t.Errorf("over: %+v", g)
	}
	renewed := func(after, until time.Time) (found bool) {
		view(t, s, loop, func(tx *store.Tx) error {
			all, err := tx.RenewedIn(after, until)
			found = slices.ContainsFunc(all, func(g policy.Grant) bool { return g.ID == x.Grant })
			return err
		})
		return found
	}
	if g := get(); !renewed(g.RotatedAt.Add(-time.Microsecond), g.RotatedAt) || renewed(g.RotatedAt, time.Now().Add(time.Hour)) || renewed(time.Time{}, g.RotatedAt.Add(-time.Microsecond)) {
		t.Errorf("renewed at %s is not found in its time alone", g.RotatedAt)
	}
	next, err := begin()
	if g := get(); renewed(time.Time{}, g.RotatedAt) {
		t.Error("a grant that is being renewed is found as renewed")
	}
	if err != nil || next.Rotation == first.Rotation {
		t.Fatalf("the next one: %+v %v", next, err)
	}
	update(t, s, x.user(), func(tx *store.Tx) error { _, err := tx.RevokeGrant(x.Grant, ""); return err })
	wantCode(t, "a part of what was revoked", keep(next.Rotation), protocol.CodeConflict)
	update(t, s, loop, func(tx *store.Tx) error { return tx.EndRotation(x.Grant, next.Rotation, "") })
	_, err = begin()
	wantCode(t, "a revoked grant", err, protocol.CodeConflict)
}

// floors rise only, and every change has a new sequence. INV-13.
func floors(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	add := func(f policy.Floor) (out policy.Floor) {
		update(t, s, loop, func(tx *store.Tx) (err error) { out, err = tx.AddFloor(f); return err })
		return out
	}
	feed := func(after int64) (all []policy.Floor, newest int64) {
		view(t, s, loop, func(tx *store.Tx) (err error) { all, newest, err = tx.Floors(after, 0); return err })
		return all, newest
	}
	a := add(policy.Floor{Kind: policy.FloorGrant, ID: x.Grant.String(), Minimum: 5})
	if a.Seq != 2 || a.At.IsZero() {
		t.Errorf("%+v", a)
	}
	lower := add(policy.Floor{Kind: policy.FloorGrant, ID: x.Grant.String(), Minimum: 3, ExpiresAt: time.Now().Add(time.Minute)})
	if lower.Minimum != 5 || !lower.ExpiresAt.IsZero() || lower.Seq != 3 {
		t.Errorf("a floor fell: %+v", lower)
	}
	all, newest := feed(0)
	if len(all) != 2 || newest != 3 || all[1].Seq != 3 {
		t.Errorf("%d floors, newest %d", len(all), newest)
	}
	if rest, newest := feed(3); len(rest) != 0 || newest != 3 {
		t.Errorf("after the newest: %+v, %d", rest, newest)
	}
	add(policy.Floor{Kind: policy.FloorTurn, ID: x.Active.String(), Minimum: 1, ExpiresAt: time.Now().Add(-time.Second)})
	add(policy.Floor{Kind: policy.FloorTurn, ID: x.Next.String(), Minimum: 1, ExpiresAt: time.Now().Add(time.Hour)})
	all, newest = feed(0)
	gone := !slices.ContainsFunc(all, func(f policy.Floor) bool { return f.ID == x.Active.String() })
	kept := slices.ContainsFunc(all, func(f policy.Floor) bool { return f.ID == x.Next.String() })
	if !gone || !kept || newest != 5 {
		t.Errorf("expired gone %v, other kept %v, newest %d", gone, kept, newest)
	}
}

// slicesOfBudget never fall and stay closed. INV-19.
func slicesOfBudget(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	save := func(ceiling, drawn int64, closed time.Time) error {
		return attempt(s, func(tx *store.Tx) error {
			l, err := tx.Slice(x.Slice)
			if err != nil {
				return err
			}
			l.CeilingMicroUSD, l.DrawnMicroUSD, l.ClosedAt = ceiling, drawn, closed
			return tx.SaveSlice(l)
		})
	}
	if err := save(200, 150, time.Time{}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "the ceiling falls", save(199, 150, time.Time{}), protocol.CodeConflict)
	wantCode(t, "the draw falls", save(200, 149, time.Time{}), protocol.CodeConflict)
	count := func(input, output, calls int64) error {
		return attempt(s, func(tx *store.Tx) error {
			l, err := tx.Slice(x.Slice)
			if err != nil {
				return err
			}
			l.InputTokens, l.OutputTokens, l.ModelCalls = input, output, calls
			return tx.SaveSlice(l)
		})
	}
	if err := count(30, 20, 10); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "its input falls", count(29, 20, 10), protocol.CodeConflict)
	wantCode(t, "its output falls", count(30, 19, 10), protocol.CodeConflict)
	wantCode(t, "its calls fall", count(30, 20, 9), protocol.CodeConflict)
	now := time.Now().UTC().Truncate(time.Microsecond)
	for range 2 {
		if err := save(200, 160, now); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, "a closed one grows", save(300, 160, now), protocol.CodeConflict)
	view(t, s, loop, func(tx *store.Tx) error {
		all, err := tx.SlicesOfTurn(x.Active)
		if len(all) != 1 || all[0].DrawnMicroUSD != 160 || all[0].InputTokens != 30 || all[0].OutputTokens != 20 || all[0].ModelCalls != 10 || !all[0].ClosedAt.Equal(now) {
			t.Errorf("of the turn: %+v", all)
		}
		return err
	})
}

// cleanups stay due until they are done, and an admin sees them until then. INV-18.
func cleanups(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	due := func() (all []policy.Cleanup, debt int) {
		view(t, s, loop, func(tx *store.Tx) (err error) {
			if all, err = tx.CleanupsDue(0); err != nil {
				return err
			}
			debt, err = tx.CleanupDebt()
			return err
		})
		return all, debt
	}
	save := func(c policy.Cleanup) error {
		return attempt(s, func(tx *store.Tx) error { return tx.SaveCleanup(c) })
	}
	all, debt := due()
	if len(all) != 1 || debt != 1 {
		t.Fatalf("%d due, debt %d", len(all), debt)
	}
	c := all[0]
	c.Tries, c.NextAt, c.Evidence = 1, time.Now().Add(time.Hour), "not yet"
	if err := save(c); err != nil {
		t.Fatal(err)
	}
	if all, debt := due(); len(all) != 0 || debt != 1 {
		t.Errorf("put off: %d due, debt %d", len(all), debt)
	}
	update(t, s, loop, func(tx *store.Tx) error {
		return tx.InsertCleanup(policy.Cleanup{ID: id[protocol.CleanupID](), Tenant: x.Tenant, Kind: "slice", Subject: "later", CreatedAt: tx.Now.Add(time.Hour)})
	})
	seen := func(by store.Caller) (subjects []string, evidence string) {
		view(t, s, by, func(tx *store.Tx) error {
			for cursor := ""; ; {
				page, next, err := tx.Cleanups(1, cursor)
				if err != nil {
					return err
				}
				for _, c := range page {
					subjects, evidence = append(subjects, c.Subject), evidence+c.Evidence
				}
				if cursor = next; next == "" {
					return nil
				}
			}
		})
		return subjects, evidence
	}
	if subjects, evidence := seen(x.admin()); !slices.Equal(subjects, []string{c.Subject, "later"}) || evidence != "not yet" {
		t.Errorf("an admin sees %q, %q", subjects, evidence)
	}
	if subjects, _ := seen(x.user()); subjects != nil {
		t.Errorf("somebody who is no admin sees %q", subjects)
	}
	c.Tries, c.DoneAt, c.Evidence = 2, time.Now(), "gone"
	if err := save(c); err != nil {
		t.Fatal(err)
	}
	if subjects, _ := seen(x.admin()); !slices.Equal(subjects, []string{"later"}) {
		t.Errorf("done, and an admin sees %q", subjects)
	}
	if _, debt := due(); debt != 1 {
		t.Errorf("done, and debt %d, want that of the other", debt)
	}
	wantCode(t, "done already", save(c), protocol.CodeNotFound)
	wantCode(t, "the same id", attempt(s, func(tx *store.Tx) error {
		return tx.InsertCleanup(policy.Cleanup{ID: x.Cleanup, Tenant: x.Tenant})
	}), protocol.CodeAlreadyExists)
}

func artifacts(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	t.Run("each session has its own row of the same bytes", func(t *testing.T) {
		put := func(ses protocol.SessionID) (existed bool) {
			update(t, s, x.user(), func(tx *store.Tx) (err error) {
				existed, err = tx.PutArtifact(policy.Artifact{Digest: digest("up"), Tenant: x.Tenant, Principal: x.User, Session: ses, Kind: "workspace"})
				return err
			})
			return existed
		}
		of := func(ses protocol.SessionID) error {
			return s.View(t.Context(), x.user(), func(tx *store.Tx) error { _, err := tx.SessionArtifact(ses, digest("up")); return err })
		}
		if put("") || !put(x.Session) {
			t.Error("existed is wrong")
		}
		wantCode(t, "a session that did not put it", of(x.Old), protocol.CodeNotFound)
		for range 2 {
			if !put(x.Old) {
				t.Error("existed is wrong")
			}
		}
		for _, ses := range []protocol.SessionID{"", x.Session, x.Old} {
			if err := of(ses); err != nil {
				t.Errorf("session %q: %v", ses, err)
			}
		}
		view(t, s, x.user(), func(tx *store.Tx) error { _, err := tx.Artifact(digest("up")); return err })
	})
	t.Run("a runner reads while it holds the attempt", func(t *testing.T) {
		read := func() error {
			return s.View(t.Context(), x.runner(), func(tx *store.Tx) error { _, err := tx.Artifact(x.Artifact); return err })
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		update(t, s, loop, func(tx *store.Tx) error {
			return tx.SaveAttempt(execution.Attempt{ID: x.Offered, State: execution.AttemptCancelled, Runner: x.Runner}, execution.AttemptOffered, 0)
		})
		wantCode(t, "after its end", read(), protocol.CodeNotFound)
	})
	t.Run("accepted patches", func(t *testing.T) { acceptedPatches(t, s, x) })
}

// acceptedPatches: what the next turn starts from.
func acceptedPatches(t *testing.T, s *store.Store, x *side) {
	ses := id[protocol.SessionID]()
	update(t, s, loop, func(tx *store.Tx) error { return x.newSession(tx, ses, "", time.Time{}) })
	submit := func(workspace string) session.Turn {
		turn := session.Turn{ID: id[protocol.TurnID](), Session: ses, State: session.Queued, WorkspaceDigest: workspace}
		turn.MessageID = turn.ID.String()
		update(t, s, loop, func(tx *store.Tx) (err error) { turn, err = tx.InsertTurn(turn); return err })
		return turn
	}
	run := func(turn session.Turn, patch string, end session.TurnState) {
		update(t, s, loop, func(tx *store.Tx) error {
			now, err := walk(tx, turn, session.Received, session.RunningModel)
			if err != nil {
				return err
			}
			now.PatchDigest = patch
			_, err = walk(tx, now, end)
			return err
		})
	}
	want := func(what, workspace string, patches ...string) {
		t.Helper()
		view(t, s, x.user(), func(tx *store.Tx) error {
			w, p, err := tx.AcceptedPatches(ses)
			if w != workspace || !slices.Equal(p, patches) {
				t.Errorf("%s: %s %v, want %s %v", what, w, p, workspace, patches)
			}
			return err
		})
	}
	want("nothing yet", "")
	run(submit(""), "p0", session.Completed)
	want("a session that began in an empty workspace", "", "p0")
	first := submit("base")
	want("the first, about to begin", "base")
	run(first, "p1", session.Completed)
	run(submit(""), "p2", session.Failed)
	run(submit(""), "p3", session.Completed)
	want("completed ones, in order", "base", "p1", "p3")
	fourth, fifth := submit(""), submit("other base")
	want("a workspace further back in the queue", "base", "p1", "p3")
	run(fourth, "p4", session.Completed)
	want("the new workspace is next", "other base")
	run(fifth, "p5", session.Completed)
	want("after it", "other base", "p5")
}

// receipt of a grant's end that shows the authority as gone, or not.
func receipt(gone bool, why string) string {
	body := fmt.Sprintf(`{"layers":[{"name":"server","gone":true},{"name":"authority","detail":%q,"gone":%t}]}`, why, gone)
	return "head." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".signature"
}
