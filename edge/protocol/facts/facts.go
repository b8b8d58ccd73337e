// Package facts is what a machine may say of itself: how much, how long, and in which
// characters. The server refuses what is beyond it, since people read it, placement
// compares it, and it is kept for every machine; the machine checks itself before, so
// that its owner is told which of their words it is.
//
// It guarantees that an accepted name is one visible line. It refuses to judge whether
// what is said is true. Pure; test it with go test alone.
package facts

import (
	"strings"
	"unicode"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// Bounds of one machine's facts.
const (
	// MaxNames of one kind: actions, toolchains, caches, adapters, harnesses, keys.
	MaxNames = 64
	// MaxName bytes of one of them, of a version and of a class.
	MaxName = 64
	// MaxHost bytes, as in RFC 1035.
	MaxHost = 253
	// MaxProblem bytes of why there is no sandbox.
	MaxProblem = 4096
	// MaxSlots of one machine.
	MaxSlots = 1 << 16
)

// Check says what of f no server takes; nil where all of it is taken.
func Check(f *runnerv1.Facts) error {
	c := checker{}
	for _, word := range []struct{ what, is string }{
		{"os", f.GetOs()}, {"arch", f.GetArch()}, {"version", f.GetVersion()}, {"boot_id", f.GetBootId()}, {"boundary", f.GetBoundary()},
		{"limits", f.GetLimits()}, {"freezer", f.GetFreezer()}, {"disk", f.GetDisk()},
	} {
		c.line(word.what, word.is, MaxName)
	}
	c.line("host", f.GetHost(), MaxHost)
	c.text("sandbox_problem", f.GetSandboxProblem(), MaxProblem)
	for _, list := range []struct {
		what  string
		names []string
	}{
		{"actions", f.GetActions()}, {"toolchains", f.GetToolchains()}, {"caches", f.GetCaches()}, {"adapters", f.GetAdapters()}, {"second_keys", f.GetSecondKeys()},
	} {
		c.count(list.what, len(list.names))
		for _, name := range list.names {
			c.line(list.what, name, MaxName)
		}
	}
	c.count("harnesses", len(f.GetHarnesses()))
	for _, h := range f.GetHarnesses() {
		c.line("harnesses", h.GetName(), MaxName)
		c.line("harnesses", h.GetVersion(), MaxName)
	}
	c.number("slots", int64(f.GetSlots()), MaxSlots)
	c.number("quota.max_active_actions", int64(f.GetQuota().GetMaxActiveActions()), 1<<31-1)
	c.number("quota.max_tokens_per_day", f.GetQuota().GetMaxTokensPerDay(), 1<<62)
	return c.err
}

// checker keeps the first thing that is beyond a bound.
type checker struct{ err error }

func (c *checker) refuse(what, format string, args ...any) {
	if c.err == nil {
		c.err = protocol.Errorf(protocol.CodeInvalidArgument, "what this machine says of itself is not taken: "+what+" "+format+"; see edge.hcl and `bivouac-edge doctor`, or update bivouac-edge", args...)
	}
}

func (c *checker) count(what string, n int) {
	if n > MaxNames {
		c.refuse(what, "are %d, at most %d are taken", n, MaxNames)
	}
}

func (c *checker) number(what string, n, most int64) {
	if n < 0 || n > most {
		c.refuse(what, "is %d, it must be between 0 and %d", n, most)
	}
}

// line is one visible line of so many bytes.
func (c *checker) line(what, is string, most int) { c.chars(what, is, "", most) }

// text is line with line ends and tabs.
func (c *checker) text(what, is string, most int) { c.chars(what, is, "\n\t", most) }

func (c *checker) chars(what, is, also string, most int) {
	if len(is) > most {
		c.refuse(what, "has %d bytes, at most %d are taken", len(is), most)
	}
	for _, r := range is {
		if !unicode.IsGraphic(r) && !strings.ContainsRune(also, r) || r == unicode.ReplacementChar {
			c.refuse(what, "has a character that nobody sees (%U)", r)
		}
	}
}
