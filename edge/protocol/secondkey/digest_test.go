package secondkey_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// INV-6: whatever a decision stands on changes its digest, and what is only shown
// does not.
func TestDigestBindsTheWork(t *testing.T) {
	const attempt, runner = protocol.AttemptID("att_1"), protocol.RunnerID("run_1")
	work := &runnerv1.DeviceWork{ActionId: "act_1", Action: "files.write", Arguments: `{"path":"a"}`, PreImageDigest: "sha256:1", ApprovalDigest: "sha256:2"}
	fence := protocol.Fence(1<<62 | 1)
	want := secondkey.Digest(attempt, fence, runner, work)
	if want == "" || want != secondkey.Digest(attempt, fence, runner, proto.CloneOf(work)) {
		t.Fatalf("the digest is %q", want)
	}
	seen := map[string]string{want: "itself"}
	other := func(name, got string) {
		t.Helper()
		if before := seen[got]; before != "" {
			t.Errorf("%s has the digest of %s", name, before)
		}
		seen[got] = name
	}
	other("another attempt", secondkey.Digest("att_2", fence, runner, work))
	other("another fence", secondkey.Digest(attempt, fence+1, runner, work))
	other("another machine", secondkey.Digest(attempt, fence, "run_2", work))
	for name, change := range map[string]func(w *runnerv1.DeviceWork){
		"another action":    func(w *runnerv1.DeviceWork) { w.ActionId = "act_2" },
		"another tool":      func(w *runnerv1.DeviceWork) { w.Action = "files.read" },
		"other arguments":   func(w *runnerv1.DeviceWork) { w.Arguments = `{"path":"b"}` },
		"another pre-image": func(w *runnerv1.DeviceWork) { w.PreImageDigest = "" },
		"another approval":  func(w *runnerv1.DeviceWork) { w.ApprovalDigest = "" },
	} {
		w := proto.CloneOf(work)
		change(w)
		other(name, secondkey.Digest(attempt, fence, runner, w))
	}
	w := proto.CloneOf(work)
	w.ArgumentsDigest = "sha256:forged"
	if secondkey.Digest(attempt, fence, runner, w) != want {
		t.Error("a digest of the arguments was believed")
	}
}
