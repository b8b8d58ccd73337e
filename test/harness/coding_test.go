package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

const writes = `
rule "write" {
  when {
    user_contains = "write"
    results       = 0
  }
  call "write_file" {
    arguments = { path = "note.txt", content = "from the first turn\n" }
  }
}
rule "written" {
  when {
    user_contains = "write"
    result_of     = "write_file"
  }
  text = "I wrote note.txt."
}
`

func TestCodingTurn(t *testing.T) {
	harness.Test(t, harness.Options{Script: writes}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		alice.Apply(coder)
		turn := alice.Submit(alice.Open("coder"), "m1", "write it")
		got := alice.Completed(turn)
		if got.GetAnswer() != "I wrote note.txt." || !strings.Contains(alice.Artifact(got.GetPatchDigest()), "+from the first turn") {
			t.Errorf("turn %v", got)
		}
		w.Until("the machine is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 })
	})
}
