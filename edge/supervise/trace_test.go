package supervise

import (
	"io"
	"slices"
	"testing"
)

// The trace context reaches the code in the sandbox, and nothing else does by
// that way.
func TestTraceContext(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for given, want := range map[string]bool{good: true, "": false, "x": false, good + "\nLD_PRELOAD=/x": false, good[:54] + "G": false} {
		a := &attempt{supervisor: &supervisor{cfg: Config{Dir: t.TempDir()}}, trace: traceContext(given)}
		p := a.process(command{argv: []string{"/bin/true"}}, io.Discard)
		if got := slices.Contains(p.Env, "TRACEPARENT="+good); got != want || !want && slices.ContainsFunc(p.Env, func(e string) bool { return len(e) > 11 && e[:11] == "TRACEPARENT" }) {
			t.Errorf("%q: environment %q", given, p.Env)
		}
	}
}
