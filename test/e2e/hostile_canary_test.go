//go:build linux

package e2e

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"bivouac/test/engines/vaulttest"
	"bivouac/test/secretscan"
)

// hoard is what the hostile parties are after: every credential in play, with its
// exact bytes, of which some are known beforehand and the others are learned where
// they rightfully are: at the upstream, or in what the server recorded.
type hoard struct {
	mu  sync.Mutex
	all map[string]string // names by values
}

func newHoard() *hoard { return &hoard{all: map[string]string{}} }

// odd is what most encodings change.
const odd = `/+&<"\=%`

// stored makes the value of a credential that is kept. Its beginning is looked for as
// well, so that no half of it passes.
func (h *hoard) stored(name string) string {
	stem := "canary-hostile-" + name + "-" + rand.Text()
	h.add(name+" (its beginning)", stem)
	h.add(name, stem+odd)
	return stem + odd
}

func (h *hoard) add(name, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if value != "" && h.all[value] == "" {
		h.all[value] = name
	}
}

// kinds counts the values under each name.
func (h *hoard) kinds() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	for _, name := range h.all {
		out[name]++
	}
	return out
}

func (h *hoard) scanner() *secretscan.Scanner {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []secretscan.Secret
	for value, name := range h.all {
		all = append(all, secretscan.Secret{Name: name, Value: value})
	}
	return secretscan.New(all...)
}

// file adds what one file holds.
func (h *hoard) file(t *testing.T, name, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h.add(name, strings.TrimSpace(string(b)))
}

// keyring adds the identity that opens the broker's keyring.
func (h *hoard) keyring(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(b)) {
		if strings.HasPrefix(word, "AGE-SECRET-KEY-") {
			h.add("keyring identity", word)
			return
		}
	}
	t.Fatal("the file of the keyring's identity holds none")
}

// recorded is the name of the device with which the server writes what passes as it is.
const recorded = "recorded"

// record has a server write everything as it passes, credentials included, so that a
// test knows what to look for.
func record(t *testing.T, s *vaulttest.Server) (file string) {
	t.Helper()
	file = s.AuditFile() + "." + recorded
	_, err := s.Root(t).Logical().WriteWithContext(t.Context(), "sys/audit/"+recorded,
		map[string]any{"type": "file", "options": map[string]string{"file_path": file, "log_raw": "true", "mode": "0600"}})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// passed is one line of the record, as far as it holds credentials.
type passed struct {
	Type string
	Auth struct {
		ClientToken string `json:"client_token"`
	}
	Request struct {
		Path        string
		ClientToken string `json:"client_token"`
	}
	Response struct {
		Auth struct {
			ClientToken string `json:"client_token"`
			TokenType   string `json:"token_type"`
			Metadata    map[string]string
		}
		Data map[string]any
	}
}

// learn reads a server's record: every token that it issued, by what it is for, and
// what its engines issued. The admin's own token is in it too.
func (h *hoard) learn(t *testing.T, file, root string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h.add("admin's token", root)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var p passed
		if json.Unmarshal(lines.Bytes(), &p) != nil || p.Type != "response" {
			continue
		}
		h.learned(p)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func (h *hoard) learned(p passed) {
	switch token := p.Response.Auth.ClientToken; {
	case token == "":
	case strings.HasPrefix(p.Request.Path, "auth/approle/login"):
		h.add("broker's token", token)
	case p.Response.Auth.TokenType == "batch":
		h.add("action's token", token)
	case strings.HasPrefix(p.Request.Path, "auth/token/create"):
		h.add("grant's token", token)
	}
	text := func(field string) string {
		s, _ := p.Response.Data[field].(string)
		return s
	}
	switch {
	case strings.HasPrefix(p.Request.Path, mountDatabase+"/creds/"):
		h.add("database password", text("password"))
	case strings.HasPrefix(p.Request.Path, mountTransit+"/sign/"):
		_, signature, _ := strings.Cut(strings.TrimPrefix(text("signature"), "vault:"), ":")
		h.add("signature", signature)
	case strings.HasSuffix(p.Request.Path, "/secret-id"):
		h.add("secret id", text("secret_id"))
	}
}

// issuedKey adds the private key of a client's certificate, of which the upstream sees
// the public half: as every encoding of it ends that programs write (RFC 5915, 5958).
func (h *hoard) issuedKey(point []byte) {
	h.add("private key", string(append([]byte{0xa1, 0x44, 0x03, 0x42, 0x00}, point...)))
}
