package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// writer changes its workspace, asks for a write on the person's own machine, and
// says what it was told.
const writer = `
rule "work" {
  when {
    user_contains = "note it"
    results       = 0
  }
  call "write_file" {
    arguments = { path = "done.txt", content = "the work\n" }
  }
}
rule "note it" {
  when { result_of = "write_file" }
  call "files_write" {
    arguments = { path = "notes/log.txt", content = "it is done\n" }
  }
}
rule "more" {
  when { result_of = "files_write" }
  text = "I was told: ${last_result}"
}
`

var keeper = strings.Replace(coder, "sandbox_tools =", "device_tools  = [\"files.write\"]\n  approvals { ttl = \"3h\" }\n  sandbox_tools =", 1)

// INV-6, INV-7: a coding turn that needs a person ends its attempt: nothing of it
// is on the machine while it waits, for an hour here, and its time stands still.
// After the decision another attempt has the transcript and the files, and what
// was approved has happened once.
func TestCodingTurnWaitsForAPerson(t *testing.T) {
	for _, c := range []struct {
		name    string
		approve bool
		note    string
		told    string
	}{
		{"approved", true, "it is done\n", `"digest"`},
		{"denied", false, "", "A person denied this call."},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Test(t, harness.Options{Script: writer}, func(t *testing.T, w *harness.World) {
				alice, a := w.Person("alice"), w.Edge("a")
				alice.Apply(keeper)
				dir := repository(t, map[string]string{"README.md": "a project\n"})
				turn := alice.SubmitOn(alice.Open("coder"), "m1", "do it and note it", alice.Pack(dir))
				asked := alice.AwaitApproval()
				w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 && a.Supervisors() == 0 }) // INV-7
				time.Sleep(time.Hour)
				if got := alice.Turn(turn); got.GetState() != "WAITING_APPROVAL" || len(a.Status().Attempts) != 0 {
					t.Fatalf("after an hour the turn is %s, and the machine has %v", got.GetState(), a.Status().Attempts)
				}
				if got := a.Read("log.txt"); got != "" {
					t.Errorf("it was written before it was approved: %q", got)
				}
				alice.Decide(asked, c.approve)
				done := alice.Completed(turn)
				if !strings.HasPrefix(done.GetAnswer(), "I was told: ") || !strings.Contains(done.GetAnswer(), c.told) {
					t.Errorf("answer %q", done.GetAnswer())
				}
				if got := a.Read("log.txt"); got != c.note {
					t.Errorf("the note is %q", got)
				}
				if patch := alice.Artifact(done.GetPatchDigest()); strings.Count(patch, "diff --git") != 1 || !strings.Contains(patch, "the work") {
					t.Errorf("the patch is\n%s", patch)
				}
				var ends []string
				for _, at := range alice.Attempts(turn) {
					ends = append(ends, at.GetState()+" "+at.GetReason())
				}
				if got := strings.Join(ends, ", "); !strings.HasPrefix(got, "INTERRUPTED approval_required, SUCCEEDED") {
					t.Errorf("attempts: %s", got)
				}
				w.Until("the machine is tidy again", time.Minute, func() bool { return len(a.Attempts()) == 0 && a.Supervisors() == 0 }) // INV-18
			})
		})
	}
}
