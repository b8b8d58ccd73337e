package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What is missing is found by the next probe; what is well is looked for again
// only after a while, so that probes cost nothing.
func TestReadinessIsSeenWhenItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked int
		answer := errors.New("the broker has not answered yet")
		r := &readiness{}
		look := func() check {
			return r.round(t.Context(), []probe{{"broker", func(context.Context) error { asked++; return answer }}})[0]
		}
		for range 3 {
			if c := look(); c.OK || c.Problem != answer.Error() {
				t.Errorf("not ready: %+v", c)
			}
		}
		answer = nil
		for range 3 {
			if c := look(); !c.OK || c.Problem != "" {
				t.Errorf("ready: %+v", c)
			}
		}
		if asked != 4 {
			t.Errorf("asked %d times: each time while something was missing, then once", asked)
		}
		answer = errors.New("the broker is gone")
		time.Sleep(readyCache)
		if c := look(); c.OK || asked != 5 {
			t.Errorf("after a while: %+v, asked %d times", c, asked)
		}
	})
}
