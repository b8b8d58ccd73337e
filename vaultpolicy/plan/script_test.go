package plan

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/policies"
)

func wanted() Wanted {
	return Wanted{
		Names: policies.NamesOf("bivouac"), Period: 72 * time.Hour, TokensPerSecond: 500,
		Login:       Login{Auth: login.Auth{Method: login.AppRole, Mount: "approle", Role: "bivouac-broker"}},
		Credentials: []policies.Opened{{Credential: policies.Credential{Tenant: protocol.TenantID("ten_01arz3ndektsv4rrffq69g5fav"), Name: "weather"}}},
	}
}

// A shell runs the script: every item reaches the command line with its whole body,
// in the order of the plan.
func TestScript(t *testing.T) {
	p := New(wanted())
	text, err := p.Script("it's/here")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// A command line that notes what it is given.
	noting := "#!/bin/sh\n[ \"$VAULT_NAMESPACE\" = \"it's/here\" ] || exit 1\nif [ \"$1\" = read ]; then exit 0; fi\necho \"$*\" >> calls\ncat > \"stdin.$(wc -l < calls | tr -d ' ')\"\n"
	if err := os.WriteFile(filepath.Join(dir, "vault"), []byte(noting), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh")
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(text), []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	calls := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(calls) != len(p.Items) {
		t.Fatalf("%d calls for %d items:\n%s", len(calls), len(p.Items), b)
	}
	for n, i := range p.Items {
		given, err := os.ReadFile(filepath.Join(dir, "stdin."+strconv.Itoa(n+1)))
		if err != nil {
			t.Fatal(err)
		}
		if i.Kind == "policy" {
			if calls[n] != "policy write "+i.Name+" -" || string(given) != i.Want["policy"] {
				t.Errorf("%s: %s\n%s", i.Title(), calls[n], given)
			}
			continue
		}
		body, _ := json.Marshal(i.Body())
		var got any
		if err := json.Unmarshal(given, &got); err != nil {
			t.Errorf("%s: %v", i.Title(), err)
		}
		same, _ := json.Marshal(got)
		if calls[n] != "write "+i.Path+" -" || string(same) != string(body) {
			t.Errorf("%s: %s\n%s\n%s", i.Title(), calls[n], same, body)
		}
	}
}
