package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Neither sandbox holds the capability, and code sees no channel, no host
// environment and no worker (INV-12). The relay did present it: the twin.
func TestSandboxesHoldNoCredential(t *testing.T) {
	t.Setenv("BIVOUAC_TEST_HOST_SECRET", "host-canary-77")
	asked := 0
	b := &broker{}
	b.answer = answers(
		func(*runtimev1.ModelRequest) *runtimev1.ModelDone {
			asked++
			return shellCall("c0", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls -l /proc/self/fd/; ls -a / /home/agent; cat /proc/net/unix")
		},
		func(*runtimev1.ModelRequest) *runtimev1.ModelDone { return say("ok") },
	)
	cfg := real(t, b)
	r := start(t, cfg)
	r.handOver(spec("native"), "", nil)
	res, all := r.result()
	got := toolResults(t, all)
	if res.Status != "succeeded" || len(got) != 1 || asked != 1 {
		t.Fatalf("result %+v, tools %v", res, got)
	}
	for _, secret := range []string{capability, "host-canary-77", filepath.Base(cfg.Dir) + "/", SocketName} {
		if strings.Contains(got[0].Text, secret) {
			t.Errorf("sandboxed code sees %q in\n%s", secret, got[0].Text)
		}
	}
	if !strings.Contains(got[0].Text, "HOME="+homeInside) {
		t.Errorf("the command did not run as it should:\n%s", got[0].Text)
	}
	if b.count() != 2 || b.calls[0].Capability != capability {
		t.Errorf("the relay presented %v", b.calls)
	}
	for _, name := range []string{"journal", "work"} {
		if holds(t, filepath.Join(cfg.Dir, name), capability) {
			t.Errorf("%s holds the capability", name) // INV-17
		}
	}
	r.acknowledge(all)
}

// holds searches all files below dir.
func holds(t *testing.T, dir, text string) (found bool) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		found = found || strings.Contains(string(b), text)
		return err
	}))
	return found
}

// Code plants a hostile repository and links in the workspace. Nothing of it is
// executed or followed on the host, and what leaves is no part of the patch.
func TestHostileWorkspace(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.txt")
	must(t, os.WriteFile(secret, []byte("host-file-canary"), 0o644))
	mark := filepath.Join(t.TempDir(), "executed")
	plant := strings.Join([]string{
		"mkdir -p .git/objects .git/refs/heads .git/hooks sub",
		"echo 'ref: refs/heads/main' > .git/HEAD",
		"printf '[core]\\n\\tfsmonitor = touch " + mark + "\\n[filter \"evil\"]\\n\\tclean = touch " + mark + "\\n[diff \"evil\"]\\n\\tcommand = touch " + mark + "\\n' > .git/config",
		"cp -r .git sub/.git",
		"echo '* filter=evil diff=evil text eol=crlf' > .gitattributes",
		"echo changed > a.txt",
		"ln -s " + secret + " leak.txt",
		"chmod 000 sub",
	}, " && ")
	run := func(commands []string, more ...string) (*rig, string, string) {
		r := start(t, real(t, &broker{}))
		r.handOver(scripted(script(commands, more...)), repository(t, map[string]string{"a.txt": "one\n"}), nil)
		res, all := r.result()
		var texts []string
		for _, tr := range toolResults(t, all) {
			texts = append(texts, tr.Text)
		}
		patch := ""
		if res.PatchDigest != "" {
			patch = r.patch(res.PatchDigest)
		}
		r.acknowledge(all)
		return r, res.Status + " " + res.Code + " " + res.Message + "\n" + strings.Join(texts, "\n"), patch
	}
	_, said, patch := run([]string{plant}, toolStep("read_file", map[string]string{"path": "leak.txt"}))
	if !strings.HasPrefix(said, "succeeded  left out of the patch: leak.txt (a link to "+secret+")\n") || !strings.Contains(patch, "+changed\n") || strings.Contains(patch, "leak.txt") {
		t.Errorf("a link out of the workspace: %s\n%s", said, patch)
	}
	if strings.Contains(said, "host-file-canary") || !strings.Contains(said, "out of the workspace") {
		t.Errorf("a tool followed the link: %s", said)
	}
	_, said, patch = run([]string{plant, "rm leak.txt"}) // the positive twin
	if !strings.HasPrefix(said, "succeeded  \n") || !strings.Contains(patch, "+changed\n") {
		t.Errorf("without the link: %s\n%s", said, patch)
	}
	if strings.Contains(patch, ".git/") || strings.Contains(patch, "host-file-canary") || strings.Contains(patch, "\r") {
		t.Errorf("the patch carries what it must not:\n%s", patch)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the host executed what the workspace asked for")
	}
}

// What one call does to the machine's limits is told to the model, and the
// attempt goes on.
func TestLimitsOfACall(t *testing.T) {
	r := start(t, real(t, &broker{}))
	r.handOver(scripted(`{"steps":[`+strings.Join([]string{
		toolStep("shell", map[string]any{"command": "echo begun; sleep 600", "timeout_ms": 10_000}),
		toolStep("shell", map[string]any{"command": "yes"}),
		toolStep("shell", map[string]any{"command": "echo fine"}),
	}, ",")+`]}`), "", nil)
	res, all := r.result()
	got := toolResults(t, all)
	if res.Status != "succeeded" || len(got) != 3 {
		t.Fatalf("result %+v, tools %v", res, got)
	}
	if got[0].Code != string(protocol.CodeDeadlineExceeded) || !strings.Contains(got[0].Text, "begun") {
		t.Errorf("a sleeping command: %v", got[0])
	}
	if got[1].Code != "output_limit" || !got[1].Truncated || len(got[1].Text) > 32<<10 {
		t.Errorf("an endless output: %s, %d bytes", got[1].Code, len(got[1].Text))
	}
	if got[2].Status != runtimev1.ResultStatus_RESULT_STATUS_OK || got[2].Text != "fine\n" {
		t.Errorf("the next call: %v", got[2])
	}
	r.acknowledge(all)
}

// A machine that cannot run a call at all says what is wrong with it: that is no
// interruption, and another attempt would not help.
func TestBrokenMachineSaysWhy(t *testing.T) {
	cfg := real(t, &broker{})
	cfg.Toolchains = []Toolchain{{Name: "scratch", Path: "/tmp"}} // where sandboxed code has its own
	r := start(t, cfg)
	r.handOver(scripted(`{"steps":[`+toolStep("shell", map[string]any{"command": "true"})+`]}`), "", nil)
	res, all := r.result()
	if res.Status != "failed" || res.Code != string(protocol.CodeInvalidArgument) || !strings.Contains(res.Message, "/tmp") {
		t.Errorf("result %+v", res)
	}
	r.acknowledge(all)
}
