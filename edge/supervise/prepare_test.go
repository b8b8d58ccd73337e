package supervise

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/worker"
)

// A workspace that cannot be made ends the attempt with its own reason, whatever becomes
// of the worker that started beside it, and nothing of that was heard: no model was asked.
func TestWorkspaceThatCannotBeMade(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, blob string){
		"nothing":         func(*rig, string) {},
		"it is not here":  func(r *rig, blob string) { must(r.t, os.Remove(blob)) },
		"it is something": func(r *rig, blob string) { must(r.t, os.WriteFile(blob, []byte("no archive"), 0o600)) },
		"its digest is of another": func(r *rig, blob string) {
			b, err := os.ReadFile(blob)
			must(r.t, err)
			must(r.t, os.WriteFile(blob, append(b, bytes.Repeat([]byte{0}, 1024)...), 0o600))
		},
	} {
		folder := repository(t, map[string]string{"a.txt": "one\n"})
		bubble(t, name, func(t *testing.T) {
			b := &broker{answer: answers(func(*runtimev1.ModelRequest) *runtimev1.ModelDone { return say("done") })}
			cfg := virtual(t, b)
			ended := make(chan struct{})
			cfg.WorkerFunc = func(ctx context.Context, conn net.Conn) error {
				defer close(ended)
				return worker.Run(ctx, conn)
			}
			r := start(t, cfg)
			turn := r.turn(spec("native"), folder)
			blob, err := cfg.blob(turn.GetWorkspaceDigest())
			must(t, err)
			spoil(r, blob)
			r.handOverWork(turn, nil)
			res, all := r.result()
			<-ended
			r.acknowledge(all)
			synctest.Wait()
			want := map[string]protocol.Code{"it is not here": protocol.CodeFailedPrecondition, "its digest is of another": protocol.CodeDataLoss}[name]
			switch {
			case name == "nothing":
				if res.Status != protocol.ResultSucceeded || b.count() != 1 {
					t.Errorf("result %+v after %d calls", res, b.count())
				}
				return
			case res.Status != protocol.ResultFailed || res.Code == protocol.ResultInterrupted || want != "" && res.Code != string(want):
				t.Errorf("result %+v, want %s", res, want)
			case b.count() != 0 || strings.Contains(res.Message, "worker"):
				t.Errorf("%d calls of a model, and %+v", b.count(), res)
			}
		})
	}
}
