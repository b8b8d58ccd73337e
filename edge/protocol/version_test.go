package protocol

import (
	"testing"
	"time"
)

// TestHistory: versions are gapless from 1, dated in order, and say what changed.
func TestHistory(t *testing.T) {
	last := ""
	for i, v := range History {
		if v.N != int32(i+1) {
			t.Errorf("entry %d has version %d", i, v.N)
		}
		if _, err := time.Parse(time.DateOnly, v.Date); err != nil || v.Date < last {
			t.Errorf("version %d is dated %q after %q", v.N, v.Date, last)
		}
		if v.What == "" {
			t.Errorf("version %d does not say what changed", v.N)
		}
		last = v.Date
	}
	if Current() != int32(len(History)) || Oldest() < 1 || Oldest() < Current()-1 {
		t.Errorf("current %d, oldest %d of %d", Current(), Oldest(), len(History))
	}
}

func TestAgree(t *testing.T) {
	now := Current()
	for name, c := range map[string]struct {
		oldest, current, want int32
		code                  Code
	}{
		"equal":             {Oldest(), now, now, ""},
		"newer peer":        {now, now + 1, now, ""},
		"much newer peer":   {now + 1, now + 2, 0, CodeIncompatible},
		"peer of no time":   {0, 0, 0, CodeIncompatible},
		"peer much too old": {Oldest() - 2, Oldest() - 1, 0, CodeIncompatible},
	} {
		got, err := Agree(c.oldest, c.current)
		if got != c.want || CodeOf(err) != c.code {
			t.Errorf("%s: Agree(%d, %d) = %d, %v", name, c.oldest, c.current, got, err)
		}
	}
}
