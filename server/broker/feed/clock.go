package feed

import (
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

const (
	// maxAnchor is the longest way to a first fresh reading that makes a useful
	// anchor: its length is added to every later age.
	maxAnchor = time.Second
	// maxJump is how far a server's clock may run ahead between two messages
	// before it counts as set anew.
	maxJump = 250 * time.Millisecond
)

// clock judges how old the newest reading of the server's store is.
//
// The server says in each message when, by its clock, it last completed a
// reading. Two clocks need an anchor. The first reading of a stream proves
// nothing: the store may hang since an hour. A reading that is newer than the
// stream's first was completed after the stream was asked for; so that instant of
// our clock is an anchor that can only make ages too long, never too short.
type clock struct {
	elapsed lease.Elapsed

	anchored bool
	offset   time.Duration // our elapsed time minus the server's, at most
	latest   time.Duration // newest reading, the server's clock

	stream struct {
		asked    time.Duration
		first    time.Duration
		seen     bool
		anchored bool
	}
}

// begin notes that a stream is being asked for.
func (c *clock) begin() {
	c.stream.asked, c.stream.first, c.stream.seen, c.stream.anchored = c.elapsed(), 0, false, false
}

// observe takes one reading. An error asks for a new stream.
func (c *clock) observe(readUs int64) error {
	now, read := c.elapsed(), time.Duration(readUs)*time.Microsecond
	if c.stream.anchored {
		return c.follow(now, read)
	}
	switch {
	case !c.stream.seen:
		c.stream.seen, c.stream.first = true, read
	case read < c.stream.first:
		return anew("the server's clock was set back")
	case read > c.stream.first:
		if now-c.stream.asked > maxAnchor {
			return anew("the server was slow to answer")
		}
		c.offset, c.latest = c.stream.asked-read, read
		c.anchored, c.stream.anchored = true, true
	}
	return nil
}

func (c *clock) follow(now, read time.Duration) error {
	if read < c.latest {
		return anew("the server's clock was set back")
	}
	switch ahead := c.offset - (now - read); {
	case ahead > maxJump:
		return anew("the server's clock was set forward")
	case ahead > 0:
		c.offset = now - read // it runs a little faster than ours
	}
	c.latest = read
	return nil
}

func anew(why string) error {
	return protocol.Errorf(protocol.CodeUnavailable, "%s: the feed begins anew", why)
}

// age of the newest reading; negative before the first.
func (c *clock) age() time.Duration {
	if !c.anchored {
		return -1
	}
	return max(0, c.elapsed()-c.latest-c.offset)
}

// now is the server's clock, as far as it can be known: never behind it by more
// than the anchor's length.
func (c *clock) now() (time.Time, bool) {
	if !c.anchored {
		return time.Time{}, false
	}
	return time.UnixMicro((c.elapsed() - c.offset).Microseconds()), true
}
