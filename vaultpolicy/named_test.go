package vaultpolicy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/audit"
)

// quickly is long enough for some questions, and no poll.
const quickly = 100 * time.Millisecond

// newAudited is a world whose broker reads the server's audit.
func newAudited(t *testing.T) *world {
	from := source{written: newAccessors(), follow: func(ctx context.Context, _ func(audit.Change)) error {
		<-ctx.Done() // the lines come below
		return nil
	}}
	f, c := newFake(t)
	w := &world{fake: f, log: slog.New(slog.DiscardHandler), audits: []source{from}}
	w.restart(t, c)
	reader := audit.Reader{Grants: w.names.Grants}
	w.fake.with(func() {
		w.fake.audit = func(line string) { w.audited(from.written, reader.Read([]byte(line))) }
	})
	return w
}

// admin does something in the server, which its audit has a line of.
func (w *world) admin(operation, path, accessor string, do func(*fake)) {
	w.fake.with(func() {
		do(w.fake)
		w.fake.recordLocked("admin", operation, path, map[string]any{"accessor": accessor})
	})
}

func (w *world) revokedByAdmin(g authority.Grant) {
	accessor, _ := w.lives(g)
	w.admin("update", "auth/token/revoke-accessor", accessor, func(f *fake) { delete(f.tokens, f.tokenOf(g)) })
}

func (w *world) asked(path string) (n int) {
	w.fake.with(func() { n = w.fake.asked[path] })
	return n
}

// hang makes the look-ups of all grants but one wait for their time.
func (w *world) hang(but authority.Grant) {
	accessor, _ := w.lives(but)
	w.fake.with(func() {
		w.fake.fault = func(r *http.Request) (int, string) {
			if onlyLookups(r, 1) == 0 {
				return 0, ""
			}
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			var asked struct{ Accessor string }
			if json.Unmarshal(body, &asked) == nil && asked.Accessor == accessor {
				return 0, ""
			}
			return -1, ""
		}
	})
}

// What the audit names ends at once, in the middle of a round that waits for answers
// about everything else; nobody else's grant does. INV-13.
func TestNamedWaitsForNoRound(t *testing.T) {
	for name, c := range map[string]struct {
		end func(w *world, g authority.Grant)
		how string
	}{
		"token": {func(w *world, g authority.Grant) { w.revokedByAdmin(g) }, "revoked in the server"},
		"person": {func(w *world, g authority.Grant) {
			entity := "ent-user-" + g.Principal.String()
			w.admin("update", "identity/entity/id/"+entity, "", func(f *fake) { f.entities[entity] = true })
		}, "disabled"},
		"entry": {func(w *world, g authority.Grant) {
			w.admin("delete", "bivouac-grants/metadata/"+g.Principal.String()+"/"+g.ID.String(), "", func(f *fake) { delete(f.kv, f.key(g)) })
		}, "index was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAudited(t)
				var all []authority.Grant
				for range 3 * parallel {
					g, _ := w.grant(t)
					all = append(all, g)
				}
				g, others := all[0], all[1:]
				for _, err := range w.use(t.Context(), 5*time.Second, all...) {
					codeIs(t, "in use", err, "")
				}
				w.hang(g)
				time.Sleep(defaultPoll + quickly) // a round began
				lists := w.asked("bivouac-grants/metadata/")
				c.end(w, g)
				time.Sleep(quickly)
				codeIs(t, "the ended grant", w.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
				if told := w.told(); len(told) != 1 || told[0].Grant != g.ID || !strings.Contains(told[0].How, c.how) {
					t.Errorf("told %+v", told)
				}
				if n := w.asked("bivouac-grants/metadata/"); n != lists {
					t.Error("the whole index was read for one grant")
				}
				w.fake.with(func() { w.fake.fault = nil })
				for _, err := range w.use(t.Context(), 10*time.Second, others...) {
					codeIs(t, "another", err, "")
				}
				if told := w.told(); len(told) != 1 {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}

// Tokens of others that are revoked in the same server, and what the broker itself
// writes when a grant ends, wake nobody; what names nothing wakes everybody.
func TestOthersWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		g, _ := w.grant(t)
		doomed, _ := w.grant(t)
		w.admin("update", "auth/token/revoke-accessor", "acc-nobody", func(*fake) {})
		time.Sleep(quickly)
		if n := w.asked("auth/token/lookup-accessor"); n == 0 {
			t.Error("a token was revoked, and a grant whose hash is not known was not looked up")
		}
		w.use(t.Context(), 5*time.Second, g, doomed)
		time.Sleep(time.Second) // between two rounds
		before := w.asked("auth/token/lookup-accessor")
		for i := range 100 {
			w.admin("update", "auth/token/revoke-accessor", fmt.Sprint("acc-nobody-", i), func(*fake) {})
		}
		w.revokedByAdmin(doomed)
		time.Sleep(quickly)
		if n := w.asked("auth/token/lookup-accessor"); n != before+1 {
			t.Errorf("%d look-ups, not one", n-before)
		}
		if told := w.told(); len(told) != 1 || told[0].Grant != doomed.ID {
			t.Errorf("told %+v", told)
		}
		before = w.asked("auth/token/lookup-accessor")
		w.admin("update", "sys/leases/revoke-prefix/auth/token/create/bivouac-grant", "", func(f *fake) { delete(f.tokens, f.tokenOf(g)) })
		time.Sleep(quickly)
		if told := w.told(); len(told) != 2 || told[1].Grant != g.ID {
			t.Errorf("told %+v after %d look-ups", told, w.asked("auth/token/lookup-accessor")-before)
		}
	})
}

// A device that is made anew hashes otherwise: polling sees what it says then, and the
// next look-ups teach it. So it is with the token that takes another's place.
func TestHashesAreLearnedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		var all []authority.Grant
		for range 3 {
			g, _ := w.grant(t)
			all = append(all, g)
		}
		w.use(t.Context(), 5*time.Second, all...)
		w.fake.with(func() { w.fake.salt = "anew" })
		w.revokedByAdmin(all[0])
		codeIs(t, "by polling", w.use(t.Context(), defaultPoll+quickly, all...)[0], protocol.CodePermissionDenied)
		w.use(t.Context(), 5*time.Second, all[1:]...)
		w.revokedByAdmin(all[1])
		time.Sleep(quickly)
		codeIs(t, "by its new hash", w.Alive(t.Context(), all[1].ID), protocol.CodePermissionDenied)
		codeIs(t, "another", w.Alive(t.Context(), all[2].ID), "")
	})
}

// While the server cannot say who it is, what was named ends nothing; it is asked about
// when it can again.
func TestNamedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		g, _ := w.grant(t)
		other, _ := w.grant(t)
		w.use(t.Context(), 5*time.Second, g, other)
		w.fake.with(func() { w.fake.fault = func(*http.Request) (int, string) { return 503, "Vault is sealed" } })
		w.revokedByAdmin(g)
		time.Sleep(5 * time.Second)
		if told := w.told(); len(told) != 0 {
			t.Errorf("told %+v by a server that is sealed", told)
		}
		w.fake.with(func() { w.fake.fault = nil })
		time.Sleep(failedAgain + quickly)
		codeIs(t, "when it speaks", w.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
		codeIs(t, "the other", w.Alive(t.Context(), other.ID), "")
	})
}

// A start whose look-ups are cut short leaves none behind: what was not begun is begun
// next, and not a sweep later.
func TestStartIsTakenUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var all []authority.Grant
		for range 20 * parallel {
			g, _ := w.grant(t)
			all = append(all, g)
		}
		w.fake.with(func() {
			w.fake.fault = func(r *http.Request) (int, string) { return min(onlyLookups(r, -1), 0), "" }
		})
		w.restart(t, w.client)
		time.Sleep(sweep + time.Second)
		w.fake.with(func() { w.fake.fault = nil })
		time.Sleep(defaultPoll + 6*time.Second)
		proven := 0
		for _, g := range all {
			if e, ok := w.table.get(g.ID); ok && e.proven > 0 {
				proven++
			}
		}
		if begun := 8 * parallel; proven < len(all)-begun {
			t.Errorf("%d of %d are known to live", proven, len(all))
		}
		for _, err := range w.use(t.Context(), 3*time.Second, all...) {
			codeIs(t, "in use", err, "")
		}
	})
}

// A flood of lines about grants whose look-ups hang keeps nobody from the look-up of one
// that was revoked. INV-13.
func TestFloodOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		var all []authority.Grant
		for range parallel + 4 {
			g, _ := w.grant(t)
			all = append(all, g)
		}
		g, others := all[0], all[1:]
		w.use(t.Context(), 5*time.Second, all...)
		w.hang(g)
		for _, o := range others {
			w.admin("update", "identity/entity/id/ent-user-"+o.Principal.String(), "", func(*fake) {}) // it changed nothing
			synctest.Wait()
		}
		codeIs(t, "before it is revoked", w.Alive(t.Context(), g.ID), "")
		w.revokedByAdmin(g)
		time.Sleep(quickly)
		codeIs(t, "the revoked grant", w.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
	})
}

// Lines that come one after another about one grant cost one look-up at a time, and what
// the last of them is about is seen.
func TestOneLookUpAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		g, _ := w.grant(t)
		other, _ := w.grant(t)
		w.use(t.Context(), 5*time.Second, g, other)
		w.hang(other)
		time.Sleep(time.Second)
		before := w.asked("auth/token/lookup-accessor")
		for range 64 {
			w.admin("update", "identity/entity/id/ent-user-"+g.Principal.String(), "", func(*fake) {})
			synctest.Wait()
		}
		if n := w.asked("auth/token/lookup-accessor") - before; n > 4 {
			t.Errorf("%d look-ups of one grant within no time", n)
		}
	})
}

// What is known of a grant goes with it.
func TestAccessorsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAudited(t)
		g, _ := w.grant(t)
		other, _ := w.grant(t)
		w.use(t.Context(), 5*time.Second, g, other)
		written := w.sources[len(w.sources)-1].written
		if n := len(written.grants); n != 2 {
			t.Fatalf("%d accessors of two grants", n)
		}
		w.forget(g.ID)
		if n, ok := len(written.grants), written.complete(); n != 1 || !ok {
			t.Errorf("%d accessors once one is forgotten; all of those that live are known: %v", n, ok)
		}
	})
}
