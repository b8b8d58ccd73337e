package harness_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/sandbox/twin"
	"bivouac/test/harness"
)

// release is a model that prepares and releases in one answer.
const release = `
rule "both" {
  when { results = 0 }
  call "shell" {
    arguments = { command = "prepare" }
  }
  call "shell" {
    arguments = { command = "release it" }
  }
}
rule "say" {
  when { results = 2 }
  text = "It came to: ${last_result}"
}
`

// inspector is the coder whose shell says how a call that was interrupted is found.
var inspector = strings.Replace(strings.Replace(coder, `, "shell"]`, `]
  tool "shell" {
    kind      = "sandbox"
    recovery  = "inspectable"
    inspector = "look for it"
  }`, 1), "place_within", "max_model_calls = 9\n    place_within", 1)

// INV-5: the machine dies under a shell call; the attempt after it goes on from the
// files before that call. The inspector looks there first: what it finds is not done
// again, what it does not find is, and what it cannot tell is unknown to the model.
func TestInterruptedShellIsInspected(t *testing.T) {
	for _, c := range []struct {
		name  string
		exit  int
		again bool
		told  string
	}{
		{"happened", 0, false, "it had happened: its inspector found it"},
		{"did not happen", 10, true, "released"},
		{"a shell fails", 1, false, "The outcome of this call is not known"},
		{"cannot tell", 3, false, "The outcome of this call is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var releases, looks []string
			host := "a"
			commands := map[string]twin.Program{
				"prepare": func(_ context.Context, call twin.Call) int {
					if err := os.WriteFile(filepath.Join(call.Workspace, "prepared"), []byte("yes\n"), 0o600); err != nil {
						fmt.Fprintln(call.Stderr, err)
						return 1
					}
					return 0
				},
				"release it": func(ctx context.Context, call twin.Call) int {
					if releases = append(releases, host); host == "a" {
						call.Sleep(ctx, time.Hour) // its machine dies first
						return 137
					}
					fmt.Fprintln(call.Stdout, "released")
					return 0
				},
				"BIVOUAC_CALL='{\"command\":\"release it\"}'\nexport BIVOUAC_CALL\nlook for it": func(_ context.Context, call twin.Call) int {
					b, _ := os.ReadFile(filepath.Join(call.Workspace, "prepared"))
					looks = append(looks, host+" "+strings.TrimSpace(string(b)))
					return c.exit
				},
			}
			harness.Test(t, harness.Options{Script: release, Commands: commands}, func(t *testing.T, w *harness.World) {
				alice := w.Person("alice")
				w.Edge("a")
				alice.Apply(inspector)
				session := alice.Open("coder")
				turn := alice.Submit(session, "m1", "go")
				w.Until("the call runs", time.Minute, func() bool { return len(w.Log.Find("a", "command started", "command", "release it")) == 1 })
				time.Sleep(5 * time.Second) // the checkpoint before it has arrived
				w.KillEdge("a")
				host = "b"
				w.Edge("b")
				done := alice.Completed(turn)
				if !strings.Contains(done.GetAnswer(), c.told) {
					t.Errorf("the model was told %q", done.GetAnswer())
				}
				if got := strings.Join(looks, ","); got != "b yes" {
					t.Errorf("it was looked for at %q", got)
				}
				if want := map[bool]string{true: "a,b", false: "a"}[c.again]; strings.Join(releases, ",") != want {
					t.Errorf("it was released on %v, want %s", releases, want)
				}
				if patch := alice.Artifact(done.GetPatchDigest()); !strings.Contains(patch, "prepared") {
					t.Errorf("the patch is\n%s", patch)
				}
			})
		})
	}
}
