//go:build unix

package service_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/service"
	"bivouac/edge/state"
)

// systemctl puts a program of that name first on PATH; it notes its arguments, and
// then does what script says.
func systemctl(t *testing.T, script string) (calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	text := "#!/bin/sh\necho \"$@\" >> " + log + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return func() string {
		b, _ := os.ReadFile(log)
		return string(b)
	}
}

func unit(t *testing.T) service.Unit {
	t.Helper()
	dir, err := state.Create(filepath.Join(t.TempDir(), `odd "100%" $dir`))
	if err != nil {
		t.Fatal(err)
	}
	return service.Unit{State: dir, Program: "/opt/bivouac/bivouac-edge", Folder: filepath.Join(t.TempDir(), "systemd", "user")}
}

func TestInstallAndRemove(t *testing.T) {
	calls := systemctl(t, "exit 0")
	u := unit(t)
	if err := u.Available(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // repeating is harmless
		file, err := u.Install(t.Context())
		if err != nil || filepath.Base(file) != u.Name() {
			t.Fatal(file, err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`ExecStart="/opt/bivouac/bivouac-edge" run --state "` + filepath.Dir(u.State.Path()) + `/odd \"100%%\" $$dir"`,
			"KillMode=process", "RestartPreventExitStatus=3 4", "WantedBy=default.target",
		} {
			if !strings.Contains(string(b), want) {
				t.Errorf("the unit lacks %q:\n%s", want, b)
			}
		}
	}
	if got := calls(); !strings.Contains(got, "--user --no-pager daemon-reload\n--user --no-pager enable --now "+u.Name()) {
		t.Errorf("systemctl was called as\n%s", got)
	}
	// systemd's link is made by systemd; here by hand.
	link := filepath.Join(u.Folder, "default.target.wants", u.Name())
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(u.Folder, u.Name()), link); err != nil {
		t.Fatal(err)
	}
	removed, err := u.Remove(t.Context())
	if err != nil || removed == "" || !strings.Contains(calls(), "disable --now "+u.Name()) {
		t.Errorf("removed %q, %v", removed, err)
	}
	for _, name := range []string{removed, link} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	if removed, err := u.Remove(t.Context()); err != nil || removed != "" {
		t.Errorf("removed again: %q, %v", removed, err)
	}
}

// Where the user has no systemd nothing is written, and what helps is said.
func TestNotAvailable(t *testing.T) {
	u := unit(t)
	t.Setenv("USER", "ada")
	systemctl(t, `echo "Failed to connect to bus: No medium found" >&2; exit 1`)
	err := u.Available(t.Context())
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Fatal(err)
	}
	for _, want := range []string{"No medium found", "loginctl enable-linger ada", "bivouac-edge run --state"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if err := u.Available(t.Context()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "does not have") {
		t.Errorf("without systemctl: %v", err)
	}
	if _, err := os.Stat(u.Folder); err == nil {
		t.Error("something was written")
	}
}

// A unit that somebody else wrote stays as it is.
func TestForeignUnitIsLeftAlone(t *testing.T) {
	systemctl(t, "exit 0")
	u := unit(t)
	file, err := u.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(u.Folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("[Unit]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, installErr := u.Install(t.Context())
	_, removeErr := u.Remove(t.Context())
	for _, err := range []error{installErr, removeErr} {
		if protocol.CodeOf(err) != protocol.CodeAlreadyExists {
			t.Errorf("got %v", err)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "[Unit]\n" {
		t.Errorf("it is now %q", b)
	}
}

// Two runners of one user have units of their own.
func TestUnitsOfTwoRunners(t *testing.T) {
	a, b := unit(t), unit(t)
	if a.Name() == b.Name() {
		t.Errorf("both are %s", a.Name())
	}
	t.Setenv("BIVOUAC_EDGE_STATE", a.State.Path())
	if a.Name() != "bivouac-edge.service" || b.Name() == a.Name() {
		t.Errorf("the default one is %s, the other %s", a.Name(), b.Name())
	}
}

// systemctl gets what finds the user's systemd, and no token that its caller keeps in the
// environment.
func TestSystemctlInheritsNoToken(t *testing.T) {
	u := unit(t)
	tokens := []string{"VAULT_TOKEN", "BAO_TOKEN", "NOMAD_TOKEN", "CONSUL_HTTP_TOKEN"}
	for _, name := range tokens {
		t.Setenv(name, "canary-of-"+name)
	}
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/4711")
	seen := filepath.Join(t.TempDir(), "env")
	systemctl(t, "env > "+seen)
	if err := u.Available(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(seen)
	if err != nil || !strings.Contains(string(b), "XDG_RUNTIME_DIR=/run/user/4711\n") || strings.Contains(string(b), "canary") {
		t.Errorf("%v; systemctl was given\n%s", err, b)
	}
}
