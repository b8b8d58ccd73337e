//go:build linux

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"bivouac/server/api/apiv1"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/ssh/sshtest"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

const sshTools = `
  tool "restart" {
    kind        = "ssh"
    description = "Restarts a service."
    destination = "web1"
    command     = "restart"
    credential  = "web1-ssh"
    effect      = "R3"
    recovery    = "opaque"
    approval    = "never"
    input       = { type = "object", additionalProperties = false, required = ["unit"], properties = { unit = { type = "string" } } }
  }
`

const sshScript = `
rule "hold" {
  when {
    user_contains = "restart slowly"
    results       = 0
  }
  call "restart" { arguments = { unit = "held" } }
}
rule "restart" {
  when {
    user_contains = "restart it"
    results       = 0
  }
  call "restart" { arguments = { unit = "web; reboot" } }
}
rule "tell" {
  when { any_result_matches = "(?s)(?P<all>.+)" }
  text = "I got: ${any.all}"
}
`

// A tool runs a command on a host, signed in with a certificate that the server signed
// for this action alone, from an engine that setup made. A grant that is revoked while a
// command runs closes the connection, and nothing is signed any more. INV-10, INV-13.
func TestSSHInATurn(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with a real server")
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		server := vaulttest.Start(t, p)
		running, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		h := &sshtest.Host{Key: sshtest.NewKey(t), RunFunc: func(p sshtest.Process) uint32 {
			if strings.HasSuffix(p.Command, "held") {
				running <- struct{}{}
				<-p.Gone
				gone <- struct{}{}
			}
			fmt.Fprint(p.Out, "restarted")
			return 0
		}}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		v := &stack.Vault{Address: server.Address(), CAFile: server.CAFile(), Token: server.RootToken(), AuditFile: server.AuditFile(), Command: p.Command, Home: t.TempDir(), Reached: []string{"web1"},
			Blocks: fmt.Sprintf(`destination "web1" {
  url = "ssh://%s"
  allow_private = true
  credential "web1-ssh" {
    from "ssh" {
      role = "agents"
      principals = ["deploy"]
      setup = true
    }
  }
  ssh {
    user = "deploy"
    host_keys = [%q]
    command "restart" {
      run = ["systemctl", "restart", "{unit}"]
    }
  }
}
`, ln.Addr(), strings.TrimSpace(sshtest.Line(h.Key.PublicKey())))}
		x := first(t, newStack(t, stack.Config{Script: sshScript, Vault: v}))
		made, err := server.Root(t).Logical().ReadWithContext(t.Context(), "ssh/config/ca")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := issued.PublicKeys([]string{made.Data["public_key"].(string)})
		if err != nil {
			t.Fatal(err)
		}
		h.Authority = keys[0]
		served := make(chan struct{})
		go func() { defer close(served); h.Serve(ln) }()
		defer func() { ln.Close(); <-served }()
		file := x.Path("home", "ops.hcl")
		x.write(file, strings.ReplaceAll(revokeService, "NAME", "ops")+sshTools+"}\n", 0o644)
		x.must("agents", "apply", file)
		x.must("grant", "create", "--agent", "ops", "--credential", "web1-ssh")

		turn := x.submit("chat", "restart it", "--new", "--agent", "ops").ID
		if got := x.completed(turn).GetAnswer(); got != "I got: exit status 0\nrestarted" {
			t.Errorf("%q", got)
		}
		ran, certs := h.Ran(), h.Certificates()
		if len(ran) != 1 || ran[0].Command != "systemctl restart 'web; reboot'" || len(certs) == 0 {
			t.Fatalf("%+v", ran)
		}
		action := x.turn(turn).GetActions()[0].GetId()
		if c := certs[len(certs)-1]; !strings.HasSuffix(c.KeyId, " action="+action) || len(c.Extensions) > 0 || c.CertType != gossh.UserCert {
			t.Errorf("the certificate is %q, of action %s, with %v", c.KeyId, action, c.Extensions)
		}
		held := x.submit("chat", "restart slowly", "--new", "--agent", "ops").ID
		<-running
		accessor, err := v.Admin(t.Context(), "kv", "get", "-field=accessor", "bivouac-grants/"+x.id+"/"+x.grantOf("ops"))
		if err == nil {
			_, err = v.Admin(t.Context(), "token", "revoke", "-accessor", accessor)
		}
		if err != nil {
			t.Fatal(err)
		}
		<-gone
		// Whichever is seen first: the grant's end, or the doubt about what had been sent. INV-5.
		ended := x.ended(held)
		if ended.GetReason() != "outcome_unknown" && ended.GetReason() != "grant_revoked" {
			t.Errorf("the turn is %s (%s)", ended.GetState(), ended.GetReason())
		}
		var cut []*apiv1.Action
		await(t, "the outcome of what was cut off", func() error { // evidence is sought after the turn's end, too
			if cut = x.turn(held).GetActions(); len(cut) != 1 || !slices.Contains(terminal, cut[0].GetState()) {
				return fmt.Errorf("the actions are %v", cut)
			}
			return nil
		})
		if cut[0].GetState() != "UNKNOWN" {
			t.Errorf("the action that was cut off is %v", cut[0])
		}
		before := len(h.Ran())
		if out, err := x.cli("chat", "restart it", "--new", "--agent", "ops"); err == nil {
			t.Errorf("a turn without a grant: %s", out)
		}
		if len(h.Ran()) != before {
			t.Error("a command ran after the grant's end")
		}
	})
}
