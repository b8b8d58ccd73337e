package server_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/api/apiv1"
)

// recover asks for a certificate with a self-signed one of key, signing with signer.
func (w *world) recover(m *machine, signer ed25519.PrivateKey) error {
	w.t.Helper()
	introduction, err := identity.SelfSigned(m.key, time.Now().Add(-1000*time.Hour)) // its dates mean nothing
	if err != nil {
		w.t.Fatal(err)
	}
	m.cert = &introduction
	w.dial(m)
	ask, err := m.api.RecoverChallenge(w.t.Context(), &runnerv1.RecoverChallengeRequest{})
	if err != nil {
		return protocol.FromConnect(err)
	}
	res, err := m.api.Recover(w.t.Context(), &runnerv1.RecoverRequest{
		Challenge:         ask.GetChallenge(),
		Signature:         ed25519.Sign(signer, identity.RecoverStatement(w.broker.Root.Cert, ask.GetChallenge())),
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
	})
	if err != nil {
		return protocol.FromConnect(err)
	}
	if off := time.Since(time.UnixMicro(res.GetServerTimeUs())); off < 0 || off > time.Second {
		w.t.Errorf("the server's time is %v off", off)
	}
	certs, err := identity.ParsePEM(res.GetCertificateChain())
	if err != nil {
		return err
	}
	m.cert = &tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: m.key, Leaf: certs[0]}
	w.dial(m)
	return nil
}

// The device key alone brings an enrolled machine back. A key that is not enrolled,
// one that was revoked, and who only asks in the name of a key do not. INV-13.
func TestRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		m, other := w.join(alice, "laptop", "files.read"), w.join(alice, "desk", "files.read")
		epoch := w.connect(m)
		if err := w.recover(m, m.key); err != nil {
			t.Fatal(err)
		}
		if got := w.connect(m); got != epoch+1 || m.cert.Leaf.NotAfter.Before(time.Now().Add(time.Hour)) {
			t.Errorf("after the recovery epoch %d, certificate until %v", got, m.cert.Leaf.NotAfter)
		}
		if err := w.recover(m, w.stranger().key); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("signed by another key: %v", err)
		}
		foreign := w.stranger()
		if err := w.recover(foreign, foreign.key); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "does not know the runner") {
			t.Errorf("a key that was never enrolled: %v", err)
		}
		if _, err := alice.Runners.RevokeRunner(t.Context(), &apiv1.RevokeRunnerRequest{RunnerId: m.id}); err != nil {
			t.Fatal(err)
		}
		if err := w.recover(m, m.key); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("a revoked runner: %v", err)
		}
		w.connect(other)
		if _, err := other.api.Leave(t.Context(), &runnerv1.LeaveRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := w.recover(other, other.key); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "has left") {
			t.Errorf("a runner that left: %v", err)
		}
	})
}

// memory is what a state directory remembers of its connection.
type memory struct {
	epoch      int64
	last, next string
}

// take connects from one state directory; host is its machine.
func (w *world) take(m *machine, s *memory, host string) error {
	w.t.Helper()
	res, err := m.api.Connect(w.t.Context(), &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot " + host,
		LastEpoch: s.epoch, LastNonce: s.last, TakeNonce: s.next, Facts: &runnerv1.Facts{Os: "linux", Host: host, BootId: host},
	})
	if err != nil {
		return protocol.FromConnect(err)
	}
	*s = memory{res.GetEpoch(), s.next, s.next + "'"}
	return nil
}

// Two machines with one key: the one with the older memory is refused and told of
// the other, whichever came first; the other is not disturbed and its owner hears of
// it. A machine that broke off anywhere is no copy of itself.
func TestCopiedMachineIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		m := w.join(alice, "laptop", "files.read")
		mine := memory{next: "a"}
		for range 3 {
			if err := w.take(m, &mine, "study"); err != nil {
				t.Fatal(err)
			}
		}
		unheard := mine // the answer was lost
		if err := w.take(m, &unheard, "study"); err != nil {
			t.Fatal(err)
		}
		if err := w.take(m, &mine, "study"); err != nil {
			t.Errorf("the same machine again, with the nonce that it kept: %v", err)
		}
		copy := mine
		if err := w.take(m, &mine, "study"); err != nil {
			t.Fatal(err)
		}
		copy.next = "other"
		for range 3 {
			err := w.take(m, &copy, "attic")
			if protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), "(study)") || !strings.Contains(err.Error(), "bivouac-edge leave --force") {
				t.Errorf("the copy: %v", err)
			}
		}
		epoch := mine.epoch
		if err := w.take(m, &mine, "study"); err != nil || mine.epoch != epoch+1 {
			t.Errorf("the machine itself, after its copy came: epoch %d after %d, %v", mine.epoch, epoch, err)
		}
		list, err := alice.Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
		if err != nil || len(list.GetRunners()) != 1 {
			t.Fatal(list, err)
		}
		if r := list.GetRunners()[0]; r.GetHost() != "study" || !strings.Contains(r.GetProblem(), "attic") {
			t.Errorf("the owner sees host %q, problem %q", r.GetHost(), r.GetProblem())
		}

		// A store that was put back knows less than the machine: its epochs go on above
		// both, so that a copy with the same memory still loses.
		ahead := memory{epoch: mine.epoch + 100, last: "gone", next: "b"}
		twin := ahead
		twin.next = "c"
		if err := w.take(m, &ahead, "study"); err != nil || ahead.epoch != mine.epoch+101 {
			t.Errorf("epoch %d, %v", ahead.epoch, err)
		}
		if err := w.take(m, &twin, "attic"); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
			t.Errorf("its copy: %v", err)
		}
	})
}
