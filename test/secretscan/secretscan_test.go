package secretscan

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const canary = "k-canary/7+f3 9Qz.Xw2&v1"

// A secret is found in every form, at every alignment; its absence is no hit.
func TestForms(t *testing.T) {
	s := New(Secret{"canary", canary})
	forms := map[string]string{
		"plain":       canary,
		"url":         url.QueryEscape(canary),
		"path":        url.PathEscape(canary),
		"lower":       strings.ToLower(each(canary, "%%%02X")),
		"hex":         hex.EncodeToString([]byte(canary)),
		"HEX":         strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"json":        strings.ReplaceAll(canary, "&", `\u0026`),
		"slash":       strings.ReplaceAll(canary, "/", `\/`),
		"json ascii":  each(canary, `\u%04x`),
		"html":        strings.ReplaceAll(canary, "&", "&amp;"),
		"html digits": each(canary, "&#%d;"),
		"utf-16":      "\x00" + strings.Join(strings.Split(canary, ""), "\x00"),
	}
	for shift, prefix := range []string{"", "x", "xy"} {
		forms["base64 "+string(rune('0'+shift))] = base64.StdEncoding.EncodeToString([]byte(prefix + canary + "tail"))
		forms["base64url "+string(rune('0'+shift))] = base64.URLEncoding.EncodeToString([]byte(prefix + canary))
	}
	for name, text := range forms {
		if hits := s.Bytes(name, []byte("before "+text+" after")); len(hits) != 1 {
			t.Errorf("%s: %d hits, want 1", name, len(hits))
		}
	}
	for _, other := range []string{"", "k-canary", base64.StdEncoding.EncodeToString([]byte("another secret value entirely"))} {
		if hits := s.Bytes("other", []byte(other)); len(hits) != 0 {
			t.Errorf("%q: %v", other, hits)
		}
	}
}

// Planting the canary in each class in turn raises the count by one.
func TestEachClassRaisesTheCount(t *testing.T) {
	s := New(Secret{"canary", canary})
	count := func(dir string) int {
		t.Helper()
		files, err := s.Files(filepath.Join(dir, "files"))
		if err != nil {
			t.Fatal(err)
		}
		execs, err := s.Executions(filepath.Join(dir, "exec.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files) + len(execs)
	}
	for class, plant := range map[string]func(t *testing.T, dir string){
		"nothing":   func(*testing.T, string) {},
		"file":      func(t *testing.T, dir string) { write(t, dir, "files/log", "x "+canary) },
		"file name": func(t *testing.T, dir string) { write(t, dir, "files/"+hex.EncodeToString([]byte(canary)), "") },
		"argument": func(t *testing.T, dir string) {
			write(t, dir, "exec.jsonl", `{"pid":1,"argv":["--key=`+canary+`"]}`+"\n")
		},
		"environment": func(t *testing.T, dir string) { write(t, dir, "exec.jsonl", `{"pid":1,"env":["KEY=`+canary+`"]}`+"\n") },
	} {
		dir := t.TempDir()
		write(t, dir, "files/clean", "nothing here")
		write(t, dir, "exec.jsonl", "")
		before := count(dir)
		plant(t, dir)
		want := 1
		if class == "nothing" {
			want = 0
		}
		if got := count(dir) - before; before != 0 || got != want {
			t.Errorf("%s: %d before, %d more, want 0 and %d", class, before, got, want)
		}
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
