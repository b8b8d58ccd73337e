//go:build linux

package vaultpolicy

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/finding"
	"bivouac/server/broker/secret"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// An audit source of broker.hcl to which no device of the server writes is found by an
// admin's token; one that has its device is sound; and a token that may not look says so.
func TestAuditDevice(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		socket := filepath.Join(t.TempDir(), "audit.sock")
		examine := func(a *Audit, token secret.Value) finding.Finding {
			t.Helper()
			f := File{Config: x.cfg}
			f.Audit = a
			r := finding.From("here")
			f.ExamineAudit(t.Context(), r, token)
			if len(r.All) != 1 || r.All[0].Check != "vault.audit.device" {
				t.Fatalf("%+v", r.All)
			}
			return r.All[0]
		}
		if got := examine(&Audit{File: x.AuditFile()}, x.token); got.Level != finding.OK {
			t.Errorf("a file with its device: %+v", got)
		}
		if got := examine(&Audit{File: x.AuditFile() + ".other"}, x.token); got.Level != finding.Warning {
			t.Errorf("a file without a device: %+v", got)
		}
		if got := examine(&Audit{Socket: socket}, x.token); got.Level != finding.Warning || !strings.Contains(got.Mend, "socket address="+socket) {
			t.Errorf("a socket without a device: %+v", got)
		}
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				go func() { _, _ = io.Copy(io.Discard, c) }()
			}
		}()
		t.Cleanup(func() { l.Close(); <-read })
		if err := x.root.Sys().EnableAuditWithOptionsWithContext(t.Context(), "bivouac", &api.EnableAuditOptions{
			Type: "socket", Options: map[string]string{"address": socket, "socket_type": "unix", "write_timeout": "500ms"},
		}); err != nil {
			t.Fatal(err)
		}
		if got := examine(&Audit{Socket: socket}, x.token); got.Level != finding.OK {
			t.Errorf("a socket with its device: %+v", got)
		}
		made, err := x.root.Auth().Token().CreateWithContext(t.Context(), &api.TokenCreateRequest{Policies: []string{"default"}})
		if err != nil {
			t.Fatal(err)
		}
		weak, err := secret.New(made.Auth.ClientToken)
		if err != nil {
			t.Fatal(err)
		}
		if got := examine(&Audit{Socket: socket}, weak); got.Level != finding.Warning || !strings.Contains(got.What, "is not seen") {
			t.Errorf("a token that may not look: %+v", got)
		}
	})
}
