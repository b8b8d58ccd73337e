package supervise

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// inAllocation is a supervisor whose scheduler ends it with end.
func inAllocation(t *testing.T, b *broker) (r *rig, end func()) {
	t.Helper()
	over := make(chan struct{})
	cfg := virtual(t, b)
	cfg.HandOver = over
	return start(t, cfg), func() { close(over) }
}

// checkpointed begins a turn that has written a file and runs a long command.
func (r *rig) checkpointed() {
	r.t.Helper()
	r.handOver(scripted(script(nil, toolStep("write_file", map[string]string{"path": "new.txt", "content": "hello\n"}), toolStep("shell", map[string]string{"command": "sleep 1h"}))), "", nil)
	r.records(0, func(rec *runnerv1.Record) bool { return rec.GetCheckpoint() != nil })
	synctest.Wait()
}

// A scheduler that ends the allocation interrupts the attempt, whose checkpoint is there
// for the next one. It has not failed, and nothing of it runs when its result is said.
func TestAllocationEnds(t *testing.T) {
	bubble(t, "and the daemon takes its records", func(t *testing.T) {
		r, end := inAllocation(t, &broker{})
		r.checkpointed()
		end()
		res, all := r.result()
		if res.Status != protocol.ResultFailed || res.Code != protocol.ResultInterrupted {
			t.Errorf("result %+v", res)
		}
		kept := 0
		for _, rec := range all {
			if c := rec.GetCheckpoint(); c != nil {
				kept++
				if p := r.patch(c.PatchDigest); p == "" {
					t.Error("a checkpoint has no patch")
				}
			}
		}
		if kept == 0 {
			t.Error("there is no checkpoint")
		}
		r.acknowledge(all)
	})
	bubble(t, "and no daemon comes", func(t *testing.T) {
		r, end := inAllocation(t, &broker{})
		r.checkpointed()
		ended := time.Now()
		end()
		<-r.done
		must(t, r.err)
		if d := time.Since(ended); d < handOverLinger || d > handOverLinger+time.Second {
			t.Errorf("it ended after %v", d)
		}
		// The next daemon finds what there was.
		cfg := r.cfg
		cfg.Listener, cfg.HandOver, cfg.Recover = newMemory(), nil, true
		next := start(t, cfg)
		res, all := next.result()
		if res.Code != protocol.ResultInterrupted || res.Message != errHandedOver.Message {
			t.Errorf("result %+v", res)
		}
		next.acknowledge(all)
	})
	bubble(t, "before work came", func(t *testing.T) {
		r, end := inAllocation(t, &broker{})
		end()
		<-r.done
		must(t, r.err)
		noResult(t, r.cfg)
	})
	bubble(t, "when the turn is done", func(t *testing.T) {
		r, end := inAllocation(t, &broker{answer: answers(func(*runtimev1.ModelRequest) *runtimev1.ModelDone { return say("done") })})
		r.handOver(spec("native"), "", nil)
		res, all := r.result()
		end()
		if res.Status != protocol.ResultSucceeded {
			t.Errorf("result %+v", res)
		}
		r.acknowledge(all)
	})
	bubble(t, "after its authority did", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		over := make(chan struct{})
		cfg.HandOver = over
		r := start(t, cfg)
		r.handOver(scripted(script([]string{"sleep 1h"})), "", terms(15*time.Second, time.Hour))
		time.Sleep(20 * time.Second)
		close(over)
		<-r.done
		must(t, r.err)
		noResult(t, r.cfg)
	})
}

// noResult holds a journal to having none: none is made up.
func noResult(t *testing.T, cfg Config) {
	t.Helper()
	recs, err := openRecords(cfg.journalDir(), "")
	must(t, err)
	defer recs.journal.Close()
	if _, result, _ := recs.state(); result != 0 {
		t.Error("a result was made up")
	}
}

// A supervisor in an allocation that is given no work ends well: nothing was done.
func TestAllocationWithoutWork(t *testing.T) {
	bubble(t, "ends", func(t *testing.T) {
		r, _ := inAllocation(t, &broker{})
		began := time.Now()
		<-r.done
		must(t, r.err)
		if d := time.Since(began).Round(time.Second); d != 2*time.Minute {
			t.Errorf("it ended after %v", d)
		}
	})
}

// Who has the records alone of what another process was given begins nothing, whether that
// had begun or not: the attempt was interrupted. INV-14.
func TestRecoveryBeginsNothing(t *testing.T) {
	bubble(t, "of what never began", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		cfg.Recover = true
		r := start(t, cfg)
		hello, err := r.client.Hello(t.Context(), &supervisev1.HelloRequest{})
		must(t, err)
		if !hello.Begun || !hello.Finished {
			t.Errorf("hello %v", hello)
		}
		res, all := r.result()
		if res.Code != protocol.ResultInterrupted || len(all) != 1 {
			t.Errorf("result %+v after %d records", res, len(all))
		}
		r.acknowledge(all)
	})
}
