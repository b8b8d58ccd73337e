//go:build linux

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"strings"

	"bivouac/server/api/apiv1"
	"bivouac/test/secretscan"
)

// worker: the replaced worker did run, got what is a worker's, and nothing beside.
func (x *hostile) worker(turn *apiv1.Turn) {
	x.t.Helper()
	said := turn.GetAnswer()
	if turn.GetState() != "COMPLETED" || !strings.Contains(said, "hostile-worker") || !strings.Contains(said, "Yes.") {
		x.t.Errorf("the replaced worker did not do its rightful work: %s (%s) %s %.1500s", turn.GetState(), turn.GetReason(), turn.GetMessage(), said)
	}
	for _, never := range []string{"BIVOUAC_", "eyJ", x.Path("broker"), "SealedGrant"} {
		if strings.Contains(said, never) {
			x.t.Errorf("the replaced worker saw %q", never)
		}
	}
}

// over ends the grants, with receipts, which are searched with the rest of the files.
func (x *hostile) over() {
	x.t.Helper()
	for _, g := range x.grants() {
		x.says("explain", g.GetId())
		x.says("grant", "show", g.GetId())
		x.revoke(g.GetId())
		x.says("explain", g.GetId())
		x.says("--json", "grant", "show", g.GetId())
	}
}

// judge learns what the credentials were, and looks for them everywhere.
func (x *hostile) judge() {
	x.t.Helper()
	x.hoard.learn(x.t, x.record, x.server.RootToken())
	kinds := x.hoard.kinds()
	x.t.Logf("looked for: %v", kinds)
	for _, kind := range []string{"key", "mcp-key", "mcp-lister", "model key", "secret id", "refresh-token", "access-token", "broker's token", "grant's token", "action's token",
		"database password", "signature", "private key", "keyring identity", "admin's token"} {
		if kinds[kind] == 0 {
			x.t.Errorf("no %s was in play, or none is known", kind)
		}
	}
	s := x.hoard.scanner()
	hits := x.evidence.search(s)
	files, size := x.evidence.files(x.Path(), s)
	homes, more := x.evidence.files(x.home, s)
	for _, h := range append(append(hits, files...), homes...) {
		x.t.Error(h)
	}
	for _, where := range []string{"conversations with the model", "output of sandboxes", "answers to machines", "what the replaced worker saw", "the command line", "traces",
		"numbers of broker", "numbers of server", "numbers of edge-honest", "cmdline of processes", "environ of processes"} {
		if x.evidence.size(where) < 100 {
			x.t.Errorf("nothing is known of %s: the search is blind there", where)
		}
	}
	x.t.Logf("%d bytes of files were searched, and what %d places showed", size+more, len(x.evidence.seen))
	if got := strings.TrimSpace(x.loot.text()); got != "" {
		x.t.Errorf("the attacker's listener was reached: %.500s", got)
	}
	x.mirror.mu.Lock()
	refused := x.mirror.refused
	x.mirror.mu.Unlock()
	if len(refused) > 0 {
		x.t.Errorf("users that the engine made were not let in: %s", strings.Join(refused, "; "))
	}
	x.found(s)
}

// found: the same search finds each credential where it rightfully is, and one that
// somebody writes into a log.
func (x *hostile) found(s *secretscan.Scanner) {
	x.t.Helper()
	has := map[string]bool{}
	look := func(where string, b []byte) {
		for _, h := range s.Bytes(where, b) {
			has[h.Secret] = true
		}
	}
	x.mirror.mu.Lock()
	look("the upstream", x.mirror.received.Bytes())
	x.mirror.mu.Unlock()
	look("the MCP server", x.gossip.received)
	look("the authorization server", x.tokens.received)
	look("the admin", []byte(x.server.RootToken()))
	for _, name := range []string{x.record, x.Path("broker", "secret-id"), x.Path("broker", "keyring.key"), x.Path("secrets", "scripted-key")} {
		b, err := os.ReadFile(name)
		if err != nil {
			x.t.Fatal(err)
		}
		look(name, b)
	}
	log, err := os.ReadFile(x.Path("logs", "broker.log"))
	if err != nil {
		x.t.Fatal(err)
	}
	log = log[:min(len(log), 1<<10)]
	for value, name := range x.hoard.all {
		if !has[name] && name != "private key" {
			x.t.Errorf("%s is not found where it rightfully is", name)
		}
		for form, text := range map[string]string{"plain": value, "base64": base64.StdEncoding.EncodeToString([]byte(".." + value + "."))} {
			if len(s.Bytes("planted", append(log[:len(log):len(log)], text...))) == 0 {
				x.t.Errorf("%s is not found in a log that holds it (%s)", name, form)
			}
		}
	}
	x.keys()
}

// keys: the form in which private keys are looked for is that in which they are written.
func (x *hostile) keys() {
	x.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		x.t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		x.t.Fatal(err)
	}
	h := newHoard()
	h.issuedKey(point)
	sec1, err1 := x509.MarshalECPrivateKey(key)
	pkcs8, err2 := x509.MarshalPKCS8PrivateKey(key)
	public, err3 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err1 != nil || err2 != nil || err3 != nil {
		x.t.Fatal(err1, err2, err3)
	}
	for _, der := range [][]byte{sec1, pkcs8} {
		for _, text := range []string{string(der), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))} {
			if len(searched(h.scanner(), "", []byte(text))) == 0 {
				x.t.Errorf("a private key is not found where it is written: %q", text)
			}
		}
	}
	if len(h.scanner().Bytes("", public)) > 0 {
		x.t.Error("a public key is taken for a private one")
	}
}
