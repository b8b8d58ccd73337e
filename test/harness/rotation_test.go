package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/server/engine"
	"bivouac/test/harness"
)

// The server's signing key is made anew at two thirds of its hour, under a running
// attempt, whose next model call is admitted under the new one.
func TestSigningKeyRotatesUnderARunningAttempt(t *testing.T) {
	if testing.Short() {
		t.Skip("three quarters of an hour of heartbeats")
	}
	rare := engine.Limits{Poll: time.Minute, UsageEvery: time.Minute, DescribeEvery: 10 * time.Second}
	harness.Test(t, harness.Options{Script: sleeper, Limits: rare}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		alice.Apply(strings.NewReplacer(`"6s"`, `"1m"`, `"20s"`, `"2m"`, "  lease {", "  sandbox { exec_timeout = \"1h\" }\n  lease {").Replace(coder))
		turn := alice.Submit(alice.Open("coder"), "m1", "run sleep 45m")
		got := alice.Completed(turn)
		if got.GetAnswer() != "It said: slept 45m\n" || len(got.GetAttempts()) != 1 {
			t.Errorf("the turn ended as %v", got)
		}
		certified := w.Log.Calls(harness.Broker, "bivouac.broker.v1.TrustService/CertifySigningKey")
		if len(certified) != 2 {
			t.Fatalf("%d signing keys were certified", len(certified))
		}
		if age := certified[1].At.Sub(certified[0].At); age < 40*time.Minute || age > 42*time.Minute {
			t.Errorf("the second key came after %v", age)
		}
		if n := a.Status().Epoch; n != 2 {
			t.Errorf("the machine connected again: epoch %d", n)
		}
	})
}
