package broker_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/ssh/sshtest"
	"bivouac/server/capability"
)

var hostIP = netip.MustParseAddr("10.9.0.7")

// host is one of SSH in the world, and who signs for it.
type host struct {
	*sshtest.Host
	authority gossh.Signer
	uses      []authority.Use
}

// inHostWorld has a destination web1 with a host behind it.
func inHostWorld(t *testing.T, change func(*sshtest.Host), test func(t *testing.T, w *world, h *host)) {
	t.Helper()
	h := &host{Host: &sshtest.Host{Key: sshtest.NewKey(t)}, authority: sshtest.NewKey(t)}
	h.Authority = h.authority.PublicKey()
	key := strings.TrimSpace(sshtest.Line(h.Key.PublicKey()))
	if change != nil {
		change(h.Host)
	}
	inWorldAfter(t, func(w *world) {
		w.more = fmt.Sprintf(`
destination "web1" {
  url = "ssh://%s:22"
  allow_private = true
  data_boundaries = ["personal"]
  credential "web1-ssh" {
    from "ssh" {
      role = "agents"
      principals = ["deploy"]
    }
  }
  ssh {
    user = "deploy"
    host_keys = [%q]
    command "restart" {
      run = ["once", "run", "{idempotency_key}", "systemctl", "restart", "{unit}"]
      inspect = ["once", "look", "{idempotency_key}", "{unit}"]
    }
  }
}
`, hostIP, key)
	}, func(t *testing.T, w *world) {
		ln := linktest.NewListener()
		w.dials[hostIP] = ln
		done := make(chan struct{})
		go func() { defer close(done); h.Serve(ln) }()
		defer func() { ln.Close(); <-done }()
		w.paths.Set(consultest.Allow("web1", "agent-assistant"), consultest.Allow("weather", "agent-assistant"))
		w.outside.engines.signIn = h.signIn
		test(t, w, h)
	})
}

// signIn as the engine does.
func (h *host) signIn(u authority.Use) (gossh.Signer, error) {
	h.uses = append(h.uses, u)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := gossh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	c := &gossh.Certificate{
		Key: key.PublicKey(), CertType: gossh.UserCert, ValidPrincipals: []string{"deploy"}, ValidBefore: uint64(time.Now().Add(time.Minute).Unix()),
		Permissions: gossh.Permissions{CriticalOptions: map[string]string{"force-command": u.Command}},
	}
	if err := c.SignCert(rand.Reader, h.authority); err != nil {
		return nil, err
	}
	return gossh.NewCertSigner(c, key)
}

const restartArguments = `{"unit":"web; id"}`

// restart is a call of the command.
func (w *world) restart(change func(*brokerv1.InvokeRequest)) *brokerv1.InvokeRequest {
	return w.invocation(func(c *capability.Claims) {
		c.Destinations, c.ArgsDigest = []string{"web1", "weather"}, canonical.Digest([]byte(restartArguments))
	}, func(r *brokerv1.InvokeRequest) {
		r.Tool = &brokerv1.HttpTool{Ref: "http:forecast", Destination: "web1", Credential: "web1-ssh", Ssh: &brokerv1.SshCall{Command: "restart"}}
		r.Arguments = restartArguments
		if change != nil {
			change(r)
		}
	})
}

// A command runs under a certificate of its own action, bound to exactly it, is logged,
// and its exit status comes back.
func TestInvokeSSH(t *testing.T) {
	inHostWorld(t, func(h *sshtest.Host) {
		h.RunFunc = func(p sshtest.Process) uint32 {
			fmt.Fprint(p.Out, "Job for web failed.\n")
			return 1
		}
	}, func(t *testing.T, w *world, h *host) {
		server := w.as(w.serverCert)
		in := w.restart(nil)
		r, err := invoke(t.Context(), server, in)
		if err != nil || r.ExitStatus == nil || r.GetExitStatus() != 1 || !r.GetFailed() || r.GetHttpStatus() != 200 || string(r.GetBody()) != "exit status 1\nJob for web failed.\n" {
			t.Fatalf("%v %v", r, err)
		}
		ran := h.Ran()
		if len(ran) != 1 || ran[0].Command != "once run "+in.GetIdempotencyKey()+" systemctl restart 'web; id'" || ran[0].Asked != ran[0].Command {
			t.Errorf("%+v", ran)
		}
		if u := h.uses[0]; u.Command != ran[0].Command || u.Action.String() != in.GetActionId() || u.Session == "" || u.Grant != w.grant.ID || u.Credential != "web1-ssh" {
			t.Errorf("%+v", u)
		}
		if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_ANSWERED || !l.GetFailed() || l.GetBodyDigest() != r.GetBodyDigest() {
			t.Errorf("the log says %v", l)
		}
		look := w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Ssh.Inspects = true })
		if r, err := invoke(t.Context(), server, look); err != nil || r.GetExitStatus() != 1 || h.Ran()[1].Command != "once look "+look.GetIdempotencyKey()+" 'web; id'" {
			t.Errorf("the look-up: %v %v", r, err)
		}
		d, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Current()})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range d.GetDestinations() {
			if is := to.GetName() == "web1"; is != slices.Equal(to.GetCommands(), []string{"restart"}) {
				t.Errorf("%v", to)
			}
		}
	})
}

// Whatever says no before the command is asked for: nothing runs, and the log knows it.
// The twin is the last call. INV-5, INV-10.
func TestInvokeSSHRefuses(t *testing.T) {
	inHostWorld(t, nil, func(t *testing.T, w *world, h *host) {
		server := w.as(w.serverCert)
		refused := func(what string, in *brokerv1.InvokeRequest, want protocol.Code, says string) {
			t.Helper()
			_, err := invoke(t.Context(), server, in)
			if protocol.CodeOf(err) != want || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
			if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT || len(h.Ran()) != 0 {
				t.Errorf("%s: the log says %v, %d ran", what, l.GetState(), len(h.Ran()))
			}
		}
		refused("another command", w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Ssh.Command = "reboot" }), protocol.CodePolicyDenied, "no command")
		refused("an http tool", w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Ssh, r.Tool.Method, r.Tool.Path = nil, "GET", "/" }), protocol.CodePolicyDenied, "host of SSH")
		refused("elsewhere", w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Destination = "weather" }), protocol.CodePolicyDenied, "no host of SSH")
		refused("a stored credential", w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Credential = "weather-key" }), protocol.CodePolicyDenied, "is not bound")
		if len(h.uses) != 0 {
			t.Error("a certificate was issued for a call that is not admitted")
		}
		w.paths.Set(consul.Intention{Destination: "web1", Sources: []consul.Source{{Name: "agent-assistant", Permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{PathExact: "/restart", Methods: []string{"GET"}}}}}}})
		refused("by path", w.restart(nil), protocol.CodePolicyDenied, "web1")
		if _, err := invoke(t.Context(), server, w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.Ssh.Inspects = true })); err != nil {
			t.Errorf("the look-up, which the path allows: %v", err)
		}
		before := len(h.Ran())
		w.paths.Set(consultest.Allow("web1", "agent-assistant"))
		w.outside.engines.fails = protocol.Errorf(protocol.CodeFailedPrecondition, "the ssh role agents at ssh/ is missing")
		if _, err := invoke(t.Context(), server, w.restart(nil)); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || len(h.Ran()) != before {
			t.Errorf("no role: %v", err)
		}
		w.outside.engines.fails = nil
		if _, err := invoke(t.Context(), server, w.restart(nil)); err != nil {
			t.Error(err)
		}
	})
}

// A grant that ends while a command runs closes its connection at once; what became of
// it is not known, and nothing is issued any more. INV-5, INV-13.
func TestSSHRevokedInTheMiddle(t *testing.T) {
	inHostWorld(t, nil, func(t *testing.T, w *world, h *host) {
		closed, running := make(chan struct{}), make(chan struct{}, 1)
		h.RunFunc = func(p sshtest.Process) uint32 {
			running <- struct{}{}
			<-p.Gone
			close(closed)
			return 0
		}
		server := w.as(w.serverCert)
		in, done := w.restart(nil), make(chan error, 1)
		go func() {
			_, err := invoke(context.Background(), server, in)
			done <- err
		}()
		<-running
		r, err := server.authority.RevokeGrant(t.Context(), &brokerv1.RevokeGrantRequest{GrantId: w.grant.ID.String()})
		if err != nil || r.GetFlowsClosed() != 1 {
			t.Errorf("%v %v", r, err)
		}
		<-closed
		if err := <-done; protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
			t.Errorf("%v", err)
		}
		if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_SENT || !l.GetFinal() {
			t.Errorf("the log says %v", l)
		}
		if _, err := invoke(t.Context(), server, w.restart(nil)); protocol.CodeOf(err) != protocol.CodePermissionDenied || len(h.uses) != 1 {
			t.Errorf("after the end: %v, %d issued", err, len(h.uses))
		}
	})
}

// A command that hangs is cut off when the tool's time is over, and is not known. INV-5.
func TestSSHHangs(t *testing.T) {
	inHostWorld(t, func(h *sshtest.Host) {
		h.RunFunc = func(p sshtest.Process) uint32 { <-p.Gone; return 0 }
	}, func(t *testing.T, w *world, h *host) {
		start := time.Now()
		in := w.restart(func(r *brokerv1.InvokeRequest) { r.Tool.TimeoutMs = 5000 })
		_, err := invoke(t.Context(), w.as(w.serverCert), in)
		if protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || !strings.Contains(err.Error(), "the tool's time of 5s is over") || time.Since(start) > 6*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		var e *protocol.Error
		if !errors.As(err, &e) || len(h.Ran()) != 1 {
			t.Errorf("%v, ran %d", err, len(h.Ran()))
		}
	})
}
