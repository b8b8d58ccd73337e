package cli

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/apiv1/apiv1connect"
)

type anybody struct {
	apiv1connect.UnimplementedPrincipalServiceHandler
}

func (anybody) WhoAmI(context.Context, *apiv1.WhoAmIRequest) (*apiv1.WhoAmIResponse, error) {
	return &apiv1.WhoAmIResponse{Principal: &apiv1.Principal{Name: "alice"}}, nil
}

// The authority that login was given is kept: later commands reach the server without
// it, also where its file is gone. Without one, login says what is missing and keeps
// nothing.
func TestLoginKeepsTheAuthority(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(apiv1connect.NewPrincipalServiceHandler(anybody{}))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	token, ca, config := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem"), filepath.Join(dir, "login")
	for path, b := range map[string][]byte{token: []byte("bvt_x\n"), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bivouac := func(args ...string) (code int, out, said string) {
		var o, e bytes.Buffer
		code = Main(t.Context(), append([]string{"--config", config}, args...), strings.NewReader(""), &o, &e)
		return code, o.String(), e.String()
	}
	if code, _, said := bivouac("login", s.URL, "--token-file", token); code != protocol.CodeFailedPrecondition.ExitCode() || !strings.Contains(said, "--ca FILE") {
		t.Errorf("without the authority: %d %s", code, said)
	}
	if _, err := os.Stat(filepath.Join(config, loginFile)); err == nil {
		t.Error("a login that failed was kept")
	}
	if code, _, said := bivouac("login", s.URL, "--token-file", token, "--ca", ca); code != 0 {
		t.Fatalf("with the authority: %d %s", code, said)
	}
	if err := os.Remove(ca); err != nil {
		t.Fatal(err)
	}
	if code, out, said := bivouac("whoami"); code != 0 || !strings.Contains(out, "alice") {
		t.Errorf("the next command: %d %s%s", code, out, said)
	}
}
