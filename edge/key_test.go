package edge

import (
	"net"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// keyed is a machine whose owner holds the second key over writes, for ten minutes.
func keyed(m *machine) owner.Policy {
	return owner.Policy{Slots: 1, SecondKeys: []owner.SecondKey{{Over: device.Write, TTL: 10 * time.Minute}},
		Folders: []device.Folder{{Name: "notes", Path: m.notes, Actions: []string{device.List, device.Read, device.Write}}}}
}

// underKey runs a test on such a machine, with one write that waits.
func underKey(t *testing.T, test func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID)) {
	t.Helper()
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.save(keyed(m))
		m.write("a.txt", "old")
		m.run()
		m.connected()
		id := newAttempt()
		f.offer(id, protocol.KindAction, writing("new"))
		m.asked(id)
		test(t, f, m, id)
	})
}

// writing is a write over the file that has "old" in it.
func writing(content string) *runnerv1.Work {
	w := deviceWork(device.Write, map[string]any{"path": "notes/a.txt", "content": content})
	w.GetDevice().PreImageDigest = canonical.Digest([]byte("old"))
	w.GetDevice().Origin = &runnerv1.WorkOrigin{SessionId: "ses_1", TurnId: "trn_1", Principal: "alice", Agent: "assistant"}
	return w
}

// asked waits until the owner is asked, and the server knows.
func (m *machine) asked(id protocol.AttemptID) (q Question) {
	m.t.Helper()
	m.await("the question", 10*time.Second, func() bool {
		for _, q = range m.daemon.Questions() {
			if q.Attempt == id {
				return len(m.server.kinds(id)) >= 2
			}
		}
		return false
	})
	return q
}

// kinds of the records that the server has of an attempt, in order.
func (f *fakeServer) kinds(id protocol.AttemptID) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.reports[id.String()] {
		switch r.GetKind().(type) {
		case *runnerv1.Record_Started:
			out = append(out, "started")
		case *runnerv1.Record_EffectIntent:
			out = append(out, "intent")
		case *runnerv1.Record_OwnerAsked:
			out = append(out, "asked")
		case *runnerv1.Record_OwnerDecided:
			out = append(out, "decided")
		case *runnerv1.Record_Result:
			out = append(out, "result")
		}
	}
	return out
}

// ended waits for the result and checks that the file is as it should be.
func (m *machine) ended(id protocol.AttemptID, status, says, content string) {
	m.t.Helper()
	m.await("the result", time.Hour, func() bool { return m.server.result(id) != nil })
	if r := m.server.result(id); r.GetStatus() != status || !strings.Contains(r.GetMessage(), says) {
		m.t.Errorf("result %v, want %s with %q", r, status, says)
	}
	if got := m.read("a.txt"); got != content {
		m.t.Errorf("the file is %q, want %q", got, content)
	}
	m.await("the end of the attempt here", time.Minute, func() bool { return len(m.daemon.Status().Attempts)+len(m.daemon.Questions()) == 0 })
}

// INV-4, INV-6: nothing is done before the owner's yes, which the server has before
// the effect begins; a no, and no answer, leave the file as it is. None is unknown.
func TestSecondKeyDecides(t *testing.T) {
	for name, c := range map[string]struct {
		decide  string
		status  string
		says    string
		content string
		records []string
	}{
		"approved": {secondkey.Approved, device.Succeeded, "", "new", []string{"started", "asked", "decided", "intent", "result"}},
		"denied":   {secondkey.Denied, device.Denied, "denied this call. It did not run. Their reason: not now", "old", []string{"started", "asked", "decided", "result"}},
		"expired":  {"", device.Denied, "did not approve this call in time", "old", []string{"started", "asked", "decided", "result"}},
	} {
		t.Run(name, func(t *testing.T) {
			underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
				time.Sleep(5 * time.Minute) // many leases long
				q := m.asked(id)
				if s := m.daemon.Status(); m.read("a.txt") != "old" || s.Questions != 1 || s.Attempts[0].State != "waiting" {
					t.Fatalf("while it waits: %q, %+v", m.read("a.txt"), s)
				}
				if q.Session != "ses_1" || q.Principal != "alice" || q.Work != device.Write || q.ExpiresInMs > 5*60*1000 {
					t.Errorf("shown %+v", q)
				}
				reason := ""
				if c.decide == secondkey.Denied {
					reason = "not now"
				}
				if c.decide != "" {
					d := Decision{Attempt: id, Digest: q.Digest, Approve: c.decide == secondkey.Approved, Reason: reason}
					for range 2 { // the same again is harmless
						if _, err := m.daemon.decide(d, "me"); err != nil && protocol.CodeOf(err) != protocol.CodeNotFound {
							t.Fatal(err)
						}
					}
				}
				m.ended(id, c.status, c.says, c.content)
				if got := f.kinds(id); !slices.Equal(got, c.records) {
					t.Errorf("records %v, want %v", got, c.records)
				}
				made := f.reports[id.String()][2].GetOwnerDecided()
				if by := made.GetBy(); made.GetDigest() != q.Digest || (by == "me") != (c.decide != "") || made.GetWaitedMs() < 5*60*1000 {
					t.Errorf("the evidence is %v", made)
				}
			})
		})
	}
}

// INV-6: a decision about anything but exactly what waits is refused, and the right
// one still counts after it; the first decision stays.
func TestSecondKeyBindsItsDigest(t *testing.T) {
	underKey(t, func(t *testing.T, _ *fakeServer, m *machine, id protocol.AttemptID) {
		q := m.asked(id)
		for name, d := range map[string]Decision{
			"another digest":  {Attempt: id, Digest: canonical.Digest([]byte("forged")), Approve: true},
			"no digest":       {Attempt: id, Approve: true},
			"another attempt": {Attempt: newAttempt(), Digest: q.Digest, Approve: true},
			"a long reason":   {Attempt: id, Digest: q.Digest, Reason: strings.Repeat("x", maxReason+1)},
		} {
			if _, err := m.daemon.decide(d, "me"); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
		time.Sleep(time.Minute)
		if m.read("a.txt") != "old" {
			t.Fatal("it was written without a decision")
		}
		if _, err := m.daemon.decide(Decision{Attempt: id, Digest: q.Digest}, "me"); err != nil {
			t.Fatal(err)
		}
		if _, err := m.daemon.decide(Decision{Attempt: id, Digest: q.Digest, Approve: true}, "me"); err == nil {
			t.Error("a decision was changed")
		}
		m.ended(id, device.Denied, "denied", "old")
	})
}

// INV-4, INV-5: a daemon that restarts goes on waiting; with a decision it carries it
// out, once, and not before the server has it.
func TestSecondKeySurvivesARestart(t *testing.T) {
	underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
		q := m.asked(id)
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		m.run()
		m.connected()
		if again := m.asked(id); again.Digest != q.Digest || again.ExpiresInMs > q.ExpiresInMs-60_000 {
			t.Fatalf("after the restart %+v, before %+v", again, q)
		}
		f.net.Isolate("10.0.0.2", true) // the decision cannot be told
		if _, err := m.daemon.decide(Decision{Attempt: id, Digest: q.Digest, Approve: true}, "me"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if m.read("a.txt") != "old" {
			t.Error("it was written before the server knew of the decision")
		}
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		f.net.Isolate("10.0.0.2", false)
		m.run()
		m.ended(id, device.Succeeded, "", "new")
		m.write("a.txt", "old") // a second execution would find what it wants
		_ = m.stop()
		m.run()
		m.connected()
		time.Sleep(time.Minute)
		if m.read("a.txt") != "old" {
			t.Error("it was written twice")
		}
	})
}

// A question that waits ends, and nothing is done, when the server stops or fences
// the attempt, when the machine is cut off for longer than its retention, when the
// owner pauses, and when edge.hcl no longer allows it where it was asked for. INV-10.
func TestSecondKeyEndsWithoutADecision(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(f *fakeServer, m *machine, id protocol.AttemptID)
		status string
	}{
		"cancelled": {func(f *fakeServer, m *machine, id protocol.AttemptID) {
			f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Stop{Stop: &runnerv1.Stop{AttemptId: id.String(), Reason: "the turn was cancelled"}}})
		}, protocol.ResultCancelled},
		"fenced": {func(f *fakeServer, _ *machine, id protocol.AttemptID) {
			f.with(func() { f.claims[id.String()].dead = true })
		}, device.Failed},
		"cut off": {func(f *fakeServer, m *machine, _ protocol.AttemptID) {
			f.net.Isolate("10.0.0.2", true)
			m.await("the end of the retention", 2*testRetention, func() bool { return len(m.daemon.Questions()) == 0 })
			f.net.Isolate("10.0.0.2", false)
		}, device.Failed},
		"paused": {func(_ *fakeServer, m *machine, _ protocol.AttemptID) { m.daemon.switchTo(true) }, device.Denied},
		"not allowed any more": {func(_ *fakeServer, m *machine, _ protocol.AttemptID) {
			p := keyed(m)
			p.Folders[0].Actions = []string{device.Read}
			m.save(p)
		}, device.Denied},
		"another place": {func(_ *fakeServer, m *machine, _ protocol.AttemptID) {
			p := keyed(m)
			p.Folders[0].Path = m.t.TempDir()
			m.save(p)
		}, device.Denied},
		"a shorter ttl": {func(_ *fakeServer, m *machine, _ protocol.AttemptID) {
			p := keyed(m)
			p.SecondKeys[0].TTL = 10 * time.Second
			m.save(p)
		}, device.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
				q := m.asked(id)
				c.end(f, m, id)
				m.ended(id, c.status, "", "old")
				if _, err := m.daemon.decide(Decision{Attempt: id, Digest: q.Digest, Approve: true}, "me"); err == nil {
					t.Error("it can still be approved")
				}
			})
		})
	}
	t.Run("a block that is taken out does not answer", func(t *testing.T) {
		underKey(t, func(t *testing.T, f *fakeServer, m *machine, id protocol.AttemptID) {
			p := keyed(m)
			p.SecondKeys = nil
			m.save(p)
			time.Sleep(time.Minute)
			if m.read("a.txt") != "old" || f.result(id) != nil {
				t.Fatalf("it went on without an answer: %v", f.result(id))
			}
			if _, err := m.daemon.decide(Decision{Attempt: id, Digest: m.asked(id).Digest, Approve: true}, "me"); err != nil {
				t.Fatal(err)
			}
			m.ended(id, device.Succeeded, "", "new")
		})
	})
}

// What needs no key is done while others wait, questions take no place of what runs,
// and what is not allowed at all is refused without a question.
func TestSecondKeyHoldsUpNothingElse(t *testing.T) {
	underKey(t, func(t *testing.T, f *fakeServer, m *machine, _ protocol.AttemptID) {
		for range maxDeviceActions {
			id := newAttempt()
			f.offer(id, protocol.KindAction, writing("more"))
			m.asked(id)
		}
		read, foreign := newAttempt(), newAttempt()
		f.offer(read, protocol.KindAction, deviceWork(device.Read, map[string]any{"path": "notes/a.txt"}))
		f.offer(foreign, protocol.KindAction, deviceWork(device.Write, map[string]any{"path": "elsewhere/a.txt", "content": "x"}))
		m.await("the read", 10*time.Second, func() bool { return f.result(read).GetStatus() == device.Succeeded })
		m.await("the refusal", 10*time.Second, func() bool { return f.result(foreign).GetStatus() == device.Denied })
		if got := get(f, func() []string { return f.facts.GetSecondKeys() }); !slices.Equal(got, []string{device.Write}) {
			t.Errorf("announced keys %v", got)
		}
	})
}

// A stop that comes between two looks of the waiting action ends it as any other does.
func TestSecondKeyStoppedBetweenLooks(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.save(keyed(m))
		m.write("a.txt", "old")
		var armed atomic.Bool
		id, clock := newAttempt(), m.cfg.Elapsed
		m.cfg.Elapsed = func() time.Duration { // is asked after the look whether it was cut
			var callers [8]uintptr
			frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers[:])])
			for more := true; more && armed.Load(); {
				var one runtime.Frame
				if one, more = frames.Next(); strings.HasSuffix(one.Function, ").keyRefused") && armed.CompareAndSwap(true, false) {
					m.daemon.stopAttempt(&runnerv1.Stop{AttemptId: id.String(), Reason: "the turn was cancelled"})
				}
			}
			return clock()
		}
		m.run()
		m.connected()
		f.offer(id, protocol.KindAction, writing("new"))
		m.asked(id)
		armed.Store(true)
		m.ended(id, protocol.ResultCancelled, "", "old")
		if armed.Load() {
			t.Error("it was never stopped between two looks")
		}
	})
}

// A key that the owner takes up while an action is on its way to its effect counts:
// nobody gave it. INV-10.
func TestSecondKeyTakenUpMeanwhile(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.write("a.txt", "old")
		m.run()
		m.connected()
		id := newAttempt()
		a := &attempt{id: id, kind: protocol.KindAction, fence: 1<<32 | 1, lease: newTestLease(m)}
		a.grant(m.cfg.Elapsed(), f.terms(1<<32|1))
		m.daemon.table.add(a)
		if err := m.daemon.actions.claimed(a, writing("new").GetDevice(), nil); err != nil {
			t.Fatal(err)
		}
		m.save(keyed(m))
		m.daemon.startAction(a, writing("new").GetDevice())
		m.await("the result", 10*time.Second, func() bool { return f.result(id) != nil })
		if r := f.result(id); r.GetStatus() != device.Denied || m.read("a.txt") != "old" {
			t.Errorf("%v, and the file is %q", r, m.read("a.txt"))
		}
	})
}

// The owner decides over the control socket, as a user that the system names;
// without that word nothing is decided.
func TestSecondKeyOverTheControlSocket(t *testing.T) {
	f := newFakeServer(t)
	m := enrolled(t, f)
	if err := os.WriteFile(m.dir.Policy(), owner.Render(keyed(m)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.write("a.txt", "old")
	held := plantQuestion(t, f, m)
	var stranger atomic.Bool
	m.cfg.PeerFunc = func(c net.Conn) (string, error) {
		if stranger.Load() {
			return "", protocol.Errorf(protocol.CodePermissionDenied, "mallory does not own this runner")
		}
		return PeerUser(c)
	}
	dir, stop := startControlled(t, m)
	var all []Question
	var err error
	for len(all) == 0 && err == nil || protocol.CodeOf(err) == protocol.CodeUnavailable {
		all, err = AskQuestions(t.Context(), dir)
	}
	if err != nil || len(all) != 1 || all[0].Attempt != held {
		t.Fatalf("%+v, %v", all, err)
	}
	if _, err := Decide(t.Context(), dir, Decision{Attempt: held, Digest: "sha256:forged", Approve: true}); protocol.CodeOf(err) != protocol.CodeConflict {
		t.Errorf("a forged digest: %v", err)
	}
	stranger.Store(true)
	if _, err := Decide(t.Context(), dir, Decision{Attempt: held, Digest: all[0].Digest, Approve: true}); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("another user: %v", err)
	}
	stranger.Store(false)
	if all, err := AskQuestions(t.Context(), dir); err != nil || len(all) != 1 || all[0].Decision != "" {
		t.Errorf("after refusals %+v, %v", all, err)
	}
	got, err := Decide(t.Context(), dir, Decision{Attempt: held, Digest: all[0].Digest, Approve: true})
	if err != nil || got.Decision != secondkey.Approved {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log, err := openActions(m.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if by := log.entry(held).decided.GetBy(); by != me.Username {
		t.Errorf("the journal says %q, want %q", by, me.Username)
	}
	if _, err := AskQuestions(t.Context(), dir); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("without a daemon: %v", err)
	}
}

// plantQuestion journals a write that waits, as a daemon that ended left it.
func plantQuestion(t *testing.T, f *fakeServer, m *machine) protocol.AttemptID {
	t.Helper()
	d, err := New(m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if d.actions, err = openActions(m.dir, nil); err != nil {
		t.Fatal(err)
	}
	defer d.actions.close()
	defer d.link.Close()
	a := &attempt{id: newAttempt(), fence: 1<<32 | 1}
	w := writing("new").GetDevice()
	if _, err := d.actions.nonce(a.id); err != nil {
		t.Fatal(err)
	}
	if err := d.actions.claimed(a, w, d.question(a, w)); err != nil {
		t.Fatal(err)
	}
	f.stop()
	return a.id
}
