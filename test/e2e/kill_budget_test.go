//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac/edge/fault"
	"bivouac/test/e2e/stack"
)

// thriftyCost of a coding turn, in dollars: about six times what its largest model
// call may cost. An eighth of it is too small for a call, so every slice has to be
// filled before anything is said; and were half of it, or whole slices, lost with
// each broker, two kills would leave nothing.
const thriftyCost = "0.06"

// INV-19: the broker is killed with -9 while the model speaks to the worker, and
// its successor is killed in the same answer. What it can have spent is spent, the
// rest of the budget is there, and the turn does its work, once.
func TestBrokerIsKilledTwiceInOneAnswer(t *testing.T) {
	bin, err := stack.Build("faults")
	if err != nil {
		t.Fatal(err)
	}
	at := strings.LastIndex(killCoder, "}")
	w := newKillWorld(t, killConfig{bin: bin, tag: "thrifty",
		fault: stack.Fault{Process: "broker", Label: string(fault.BrokerModelStreaming) + "@2"},
		coder: killCoder[:at] + "  limits { max_cost_usd = " + thriftyCost + " }\n}\n"})
	w.needsSandbox()
	turn := w.submit("coding", killCoding)

	var pids []int
	for _, next := range [][]string{{"BIVOUAC_FAULT=" + string(fault.BrokerModelStreaming), "BIVOUAC_FAULT_FILE=" + w.Path("fault")}, nil} {
		label, pid := w.reached(turn)
		if label != string(fault.BrokerModelStreaming) {
			t.Fatalf("reached %q", label)
		}
		w.kill(pid, "bivouac-broker")
		<-w.Broker.Gone()
		pids = append(pids, pid)
		if err := os.Remove(w.Path("fault")); err != nil {
			t.Fatal(err)
		}
		if err := w.Broker.Start(next...); err != nil {
			t.Fatal(err)
		}
	}
	ended := w.settled(turn, time.Now().Add(patience))
	effects := w.out.effects("thrifty")
	lines, _ := w.lines(ended)
	fmt.Printf("brokers killed: %v; the turn is %s{%s}, spent %d micro-USD of %s USD, effects %v, lines %v\n",
		pids, ended.GetState(), ended.GetReason(), ended.GetCostMicroUsd(), thriftyCost, effects, lines)
	if ended.GetState() != "COMPLETED" {
		t.Fatalf("the turn is %s{%s}: %s\n%s\n%s", ended.GetState(), ended.GetReason(), ended.GetMessage(), w.explain(turn), w.tails())
	}
	if effects["thrifty-post"] != 1 || lines["thrifty-line1"] != 1 || lines["thrifty-line2"] != 1 {
		t.Errorf("effects %v, lines %v", effects, lines)
	}
}
