package vaultpolicy

import (
	"os/exec"
	"strings"
	"testing"
)

// Where the broker opens a wrapped secret id itself, nobody is told to open it.
func TestFetchLeavesTheOpeningToTheBroker(t *testing.T) {
	c := config(t)
	if text := c.Fetch(); !strings.Contains(text, "vault unwrap") {
		t.Error(text)
	}
	c.Auth.SecretIDWrapped = "wrapped"
	if text := c.Fetch(); strings.Contains(text, "vault unwrap") || !strings.Contains(text, c.path("wrapped")+".new") || !strings.Contains(text, "-wrap-ttl=120s") {
		t.Error(text)
	}
	for name, change := range map[string]func(*Auth){
		"one file for both": func(a *Auth) { a.SecretIDWrapped = a.SecretIDFile },
		"another method":    func(a *Auth) { *a = Auth{Method: "jwt", File: "jwt", Subject: "x", SecretIDWrapped: "wrapped"} },
	} {
		c := config(t)
		change(c.Auth)
		if p := c.problems(true); len(p) == 0 {
			t.Errorf("%s is taken", name)
		}
	}
}

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
