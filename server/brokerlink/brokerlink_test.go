package brokerlink_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/brokerlink"
	"bivouac/server/brokerlink/brokerlinktest"
	"bivouac/server/capability"
	"bivouac/server/engine"
)

var _ engine.Broker = (*brokerlink.Link)(nil)

const address = "broker:7402"

// world is a broker, a server's data directory and the pipe between them.
type world struct {
	broker *brokerlinktest.Broker
	net    *brokerlinktest.Switchboard
	pipe   *brokerlinktest.Pipe // of the broker
	dir    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	b, err := brokerlinktest.New()
	if err != nil {
		t.Fatal(err)
	}
	return &world{broker: b, net: &brokerlinktest.Switchboard{}, dir: t.TempDir()}
}

// serve runs the broker until the test ends.
func (w *world) serve(t *testing.T) {
	t.Helper()
	w.pipe = w.net.Listen(address)
	broker, pipe := w.broker, w.pipe
	background(t, func(ctx context.Context) error { return broker.Serve(ctx, nil, pipe) })
}

// background runs fn until the test ends or stop is called.
func background(t *testing.T, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	var err error
	ended := false
	stop = func() error {
		cancel()
		if !ended {
			err, ended = <-done, true
		}
		return err
	}
	t.Cleanup(func() { stop() })
	return stop
}

func (w *world) open(code string) (*brokerlink.Link, *capability.Signer, error) {
	s := &capability.Signer{}
	l, err := brokerlink.Open(brokerlink.Config{
		Address: address, Dir: w.dir, Code: code, Names: []string{"server"}, Network: w.net.Network(), Signer: s,
	})
	return l, s, err
}

func (w *world) code(t *testing.T) string {
	t.Helper()
	code, err := w.broker.ServerCode()
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func id[K protocol.Kind]() protocol.ID[K] { return protocol.NewID[K](time.Now(), rand.Reader) }

func claims(l *brokerlink.Link) capability.Claims {
	now := time.Now()
	return capability.Claims{
		ID: id[protocol.CapabilityKind](), Audience: "default", Presenter: l.Thumbprint(),
		Tenant: id[protocol.TenantKind](), Principal: id[protocol.PrincipalKind](), Instance: id[protocol.InstanceKind](),
		Session: id[protocol.SessionKind](), Turn: id[protocol.TurnKind](), Generation: 1, Fence: 1,
		IssuedAt: now, ExpiresAt: now.Add(time.Minute),
	}
}

func TestEnrolOnceAndKeepTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(t)
		l, signer, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Describe(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("before enrolment: %v", err)
		}
		stop := background(t, l.Run)
		<-l.Enrolled()
		if d, err := l.Describe(t.Context()); err != nil || d.GetPool() != "default" {
			t.Fatalf("describe: %v %v", d, err)
		}
		time.Sleep(3 * time.Second)
		if _, err := signer.Sign(claims(l)); err != nil || !l.Certified() {
			t.Errorf("no certified key: %v", err)
		}
		before := l.Thumbprint()
		stop()

		// A restart needs no code and keeps the presenter.
		l, _, err = w.open("")
		if err != nil {
			t.Fatal(err)
		}
		if l.Thumbprint() != before {
			t.Error("the key changed over a restart")
		}
		background(t, l.Run)
		if _, err := l.Describe(t.Context()); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		if servers, _, _ := w.broker.Counts(); servers != 1 {
			t.Errorf("%d enrolments", servers)
		}
	})
}

func TestKeyFileIsPrivate(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.open(w.code(t)); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(w.dir, "server.key"))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "server.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.open(w.code(t)); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestWaitsForABrokerThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, _, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		time.Sleep(time.Minute)
		select {
		case <-l.Enrolled():
			t.Fatal("enrolled without a broker")
		default:
		}
		w.serve(t)
		time.Sleep(20 * time.Second)
		select {
		case <-l.Enrolled():
		default:
			t.Error("not enrolled after the broker came")
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(t)
		if _, _, err := w.open(""); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-broker server-code") {
			t.Errorf("no code: %v", err)
		}
		code := w.code(t)
		if _, _, err := w.open(code[:len(code)-3]); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("a mistyped code: %v", err)
		}
		// Another root's code: nothing is sent to who cannot show that root.
		other, err := brokerlinktest.New()
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := other.ServerCode()
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := w.open(foreign)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a wrong fingerprint: %v", err)
		}
		// A used code of another server.
		w2 := &world{broker: w.broker, net: w.net, dir: t.TempDir()}
		l2, _, err := w2.open(code)
		if err != nil {
			t.Fatal(err)
		}
		background(t, l2.Run)
		<-l2.Enrolled()
		l, _, err = w.open(code)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Run(t.Context()); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("a used code: %v", err)
		}
		if _, err := os.Stat(filepath.Join(w.dir, "server.crt")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a refused server kept a certificate: %v", err)
		}
	})
}

func TestRenewsBeforeTheEndAndKeepsSigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broker.CertTTL = 3 * time.Hour
		w.serve(t)
		l, signer, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
		for range 14 {
			time.Sleep(30 * time.Minute)
			if _, err := l.Describe(t.Context()); err != nil {
				t.Fatalf("the link died: %v", err)
			}
			if _, err := signer.Sign(claims(l)); err != nil {
				t.Fatalf("no key in force: %v", err)
			}
		}
		if _, renewals, _ := w.broker.Counts(); renewals != 3 { // at 2 h, 4 h and 6 h
			t.Errorf("%d renewals in 7 hours", renewals)
		}
	})
}

// A broker whose clock is so far behind that each certificate of its is due for renewal at
// once is asked again and again, and not as fast as it answers; the link goes on.
func TestRenewsAtItsPaceWhereClocksAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broker.Root.Behind = 20 * time.Hour // of 24
		w.serve(t)
		l, _, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
		time.Sleep(10 * time.Minute)
		if _, renewals, _ := w.broker.Counts(); renewals < 5 || renewals > 200 {
			t.Errorf("%d renewals in ten minutes", renewals)
		}
		if _, err := l.Describe(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A certificate that ended while the server was off, or while the broker was, is
// renewed by the enrolled key alone; a key that nobody enrolled needs a code.
func TestAnEndedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broker.CertTTL = time.Hour
		w.serve(t)
		l, _, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		stop := background(t, l.Run)
		<-l.Enrolled()
		stop()
		time.Sleep(61 * time.Minute)
		l, _, err = w.open("")
		if err != nil {
			t.Fatal(err)
		}
		stop = background(t, l.Run)
		<-l.Enrolled()
		if _, err := l.Describe(t.Context()); err != nil {
			t.Errorf("after a renewal by the key: %v", err)
		}

		w.pipe.Close() // the broker goes away for longer than the certificate lives
		time.Sleep(2 * time.Hour)
		w.serve(t)
		time.Sleep(5 * time.Minute)
		if _, err := l.Describe(t.Context()); err != nil {
			t.Errorf("after two hours without a broker: %v", err)
		}
		stop()
		time.Sleep(61 * time.Minute)

		// Another broker under the same root that never enrolled this key.
		other, err := brokerlinktest.Under(w.broker.Root)
		if err != nil {
			t.Fatal(err)
		}
		w.pipe.Close()
		w.broker = other
		w.serve(t)
		if l, _, err = w.open(""); err != nil {
			t.Fatal(err)
		}
		if err := l.Run(t.Context()); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "server-code") {
			t.Errorf("a key that was never enrolled: %v", err)
		}
		if l, _, err = w.open(w.code(t)); err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
	})
}

// A key signs only after its statement went out, or after the longest wait.
func TestStatementBeforeSignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(t)
		l, signer, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
		var statements []string
		for len(statements) == 0 {
			var changed <-chan struct{}
			if statements, changed = l.Statements(); len(statements) == 0 {
				<-changed
			}
		}
		if _, err := signer.Sign(claims(l)); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("signed before a broker could know the key: %v", err)
		}
		st, err := capability.VerifyStatement(statements[0], w.broker.Root.Key.Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		l.Delivered([]string{"another"})
		synctest.Wait()
		if l.Certified() {
			t.Error("another statement was taken for this one")
		}
		l.Delivered(statements)
		synctest.Wait()
		token, err := signer.Sign(claims(l))
		if err != nil {
			t.Fatal(err)
		}
		keys := func(id string) (ed25519.PublicKey, bool) { return st.PublicKey, id == st.KeyID }
		if _, err := capability.Verify(token, keys, capability.Expect{Audience: "default", Presenter: l.Thumbprint(), Now: time.Now()}); err != nil {
			t.Error(err)
		}
	})
}

// A server that starts anew says of the earlier run's key that the root certified
// it, until it ends: what that run signed still lives.
func TestStatementsOutliveARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(t)
		l, _, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
		time.Sleep(5 * time.Second)
		first, _ := l.Statements()
		if len(first) != 1 {
			t.Fatalf("%d statements", len(first))
		}
		again, signer, err := w.open("")
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := again.Statements(); !slices.Equal(got, first) {
			t.Errorf("a new run says %d statements", len(got))
		}
		if _, err := signer.Sign(claims(again)); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("signed under an earlier key: %v", err)
		}
		time.Sleep(capability.KeyTTL)
		if got, _ := again.Statements(); len(got) != 0 {
			t.Errorf("%d statements that ended", len(got))
		}
	})
}

func TestCallsPassThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broker.Backend.CallModel = func(_ context.Context, r *brokerv1.CallModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
			if err := errors.Join(delta("a"), delta("b")); err != nil {
				return nil, err
			}
			switch r.GetCallId() {
			case "cut":
				return nil, nil
			case "full":
				return nil, protocol.Errorf(protocol.CodeBudgetExhausted, "the slice is drawn")
			}
			return &runtimev1.ModelDone{StopReason: runtimev1.StopReason_STOP_REASON_END}, nil
		}
		w.serve(t)
		l, _, err := w.open(w.code(t))
		if err != nil {
			t.Fatal(err)
		}
		background(t, l.Run)
		<-l.Enrolled()
		ctx := t.Context()
		for id, want := range map[string]protocol.Code{"good": "", "cut": protocol.CodeUnavailable, "full": protocol.CodeBudgetExhausted} {
			var text string
			done, err := l.CallModel(ctx, &brokerv1.CallModelRequest{CallId: id}, func(s string) { text += s })
			if protocol.CodeOf(err) != want || (want == "") != (done != nil) || text != "ab" {
				t.Errorf("%s: %v %v %q", id, done, err, text)
			}
		}
		if err := l.PutCredential(ctx, "ten_1", "key", []byte("ciphertext")); err != nil {
			t.Fatal(err)
		}
		if got := w.broker.Sealed("ten_1", "key"); string(got) != "ciphertext" {
			t.Errorf("ciphertext arrived as %q", got)
		}
		if err := l.DeleteCredential(ctx, "ten_2", "key"); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("another tenant's credential: %v", err)
		}
		if err := l.DeleteCredential(ctx, "ten_1", "key"); err != nil {
			t.Error(err)
		}
		sealed, err := l.CreateGrant(ctx, &brokerv1.CreateGrantRequest{GrantId: "grt_1"})
		if err != nil || len(sealed) == 0 {
			t.Errorf("%q %v", sealed, err)
		}
		if _, err := l.RevokeGrant(ctx, "grt_2"); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("an absent grant: %v", err)
		}
		if _, err := l.RevokeGrant(ctx, "grt_1"); err != nil {
			t.Error(err)
		}
		if jws, err := l.SignReceipt(ctx, []byte("{}")); err != nil || jws == "" {
			t.Errorf("%q %v", jws, err)
		}
	})
}
