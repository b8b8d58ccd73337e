package vaultpolicy

import (
	"os/exec"
	"strings"
	"testing"
)

// A namespace is one word for the shell that reads the commands, whatever is in it.
func TestFetchQuotesTheNamespace(t *testing.T) {
	for _, namespace := range []string{"team", "a team/it's; touch x"} {
		c := config(t)
		c.Namespace = namespace
		first, _, _ := strings.Cut(c.Fetch(), "\n")
		out, err := exec.Command("sh", "-c", first+"\nprintf %s \"$VAULT_NAMESPACE\"").Output()
		if err != nil || string(out) != namespace {
			t.Errorf("%s gives %q %v", first, out, err)
		}
	}
	if text := config(t).Fetch(); strings.Contains(text, "NAMESPACE") {
		t.Error(text)
	}
}
