package supervise

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/workspace"
)

func shellCall(id, command string) *runtimev1.ModelDone {
	b, _ := json.Marshal(map[string]string{"command": command})
	return call(id, "shell", string(b))
}

var wants = regexp.MustCompile(`want "([^"]+)"`)

// fixer is a model that can learn the expected value from the test's output
// alone.
func fixer(t *testing.T) func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
	const goTest = "GOFLAGS=-mod=mod CGO_ENABLED=0 GOTOOLCHAIN=local GOPROXY=off go test -vet=off ./..."
	return func(_ context.Context, req *runtimev1.ModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
		last := lastResult(req)
		switch last.GetCallId() {
		case "":
			return call("c0", "list_files", `{"path":""}`), delta("I look ")
		case "c0":
			return shellCall("c1", goTest), delta("and run the test.")
		case "c1":
			m := wants.FindStringSubmatch(last.GetText())
			if m == nil || last.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_FAILED {
				return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the test said %s: %q", last.GetStatus(), last.GetText())
			}
			b, _ := json.Marshal(map[string]string{"path": "value.go", "content": "package value\n\nfunc Value() string { return \"" + m[1] + "\" }\n"})
			return call("c2", "write_file", string(b)), nil
		case "c2":
			return shellCall("c3", goTest), nil
		}
		if last.GetStatus() != runtimev1.ResultStatus_RESULT_STATUS_OK {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the fixed test said %q", last.GetText())
		}
		return say("The test passes."), nil
	}
}

func goToolchain(t *testing.T) []Toolchain {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	must(t, err)
	return []Toolchain{{Name: "go", Path: strings.TrimSpace(string(root))}}
}

// The whole coding attempt with real sandboxes: the value that the test expects
// is made here, and the model sees it in the output of the executed test only.
func TestCodingAttempt(t *testing.T) {
	b := &broker{answer: fixer(t)}
	cfg := real(t, b)
	cfg.Toolchains = goToolchain(t)
	nonce := rand.Text()
	dir := repository(t, map[string]string{
		"go.mod":        "module value\n\ngo 1.21\n",
		"value.go":      "package value\n\nfunc Value() string { return \"\" }\n",
		"value_test.go": "package value\n\nimport \"testing\"\n\nfunc TestValue(t *testing.T) {\n\tif got := Value(); got != \"" + nonce + "\" {\n\t\tt.Fatalf(\"got %q, want %q\", got, \"" + nonce + "\")\n\t}\n}\n",
	})
	r := start(t, cfg)
	live, err := r.client.Live(t.Context(), &supervisev1.LiveRequest{})
	must(t, err)
	defer live.Close()
	if !live.Receive() {
		t.Fatal(live.Err())
	}
	work := spec("native")
	r.execTimeout, work.Limits.MaxWallMs = compiles, (2 * compiles).Milliseconds()
	r.handOver(work, dir, nil)
	var text strings.Builder
	for text.String() != "I look and run the test." && live.Receive() {
		text.WriteString(live.Msg().TextDelta)
	}
	res, all := r.result()
	if res.Status != "succeeded" || outcomeOf(t, res).Text != "The test passes." {
		t.Fatalf("result %+v", res)
	}
	if !strings.Contains(text.String(), "I look ") {
		t.Errorf("live text was %q", text.String())
	}
	patch := r.patch(res.PatchDigest)
	if !strings.Contains(patch, nonce) || !strings.HasPrefix(patch, "diff --git a/value.go b/value.go\n") || strings.Count(patch, "diff --git") != 1 {
		t.Errorf("the patch is\n%s", patch)
	}
	before, _ := os.ReadFile(filepath.Join(dir, "value.go"))
	if strings.Contains(string(before), nonce) {
		t.Error("the person's folder changed before apply")
	}
	must(t, workspace.Apply(t.Context(), dir, []byte(patch)))
	after, _ := os.ReadFile(filepath.Join(dir, "value.go"))
	if !strings.Contains(string(after), nonce) {
		t.Error("apply did not bring the change")
	}
	checkpoints := 0
	for _, rec := range all {
		if c := rec.GetCheckpoint(); c != nil {
			checkpoints++
			if c.PatchDigest != res.PatchDigest {
				t.Errorf("a checkpoint has the patch %s", r.patch(c.PatchDigest))
			}
		}
	}
	if checkpoints != 1 || all[0].GetStarted().GetBoundary() != "process" {
		t.Errorf("%d checkpoints (one call changed files), first record %v", checkpoints, all[0])
	}
	for _, c := range b.calls {
		if c.Capability != capability || c.CallId == "" {
			t.Errorf("a model call had the capability %q and id %q", c.Capability, c.CallId)
		}
	}
	r.acknowledge(all)
}
