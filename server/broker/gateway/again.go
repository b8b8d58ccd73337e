package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
)

// class says what may be done about a call that was answered with a no, or never
// left. What its effect could be asked twice decides; that it could be sent again
// decides nothing alone.
type class int

const (
	opaque     class = iota // sent once
	idempotent              // under its key, or by its method, as its definition says
	reads                   // nothing changes by it
)

// classOf a tool: what its definition says, as far as its method bears it out (RFC
// 9110, 9.2). repeatable says that a repetition under the same key is harmless.
func classOf(t *brokerv1.HttpTool) (c class, repeatable bool) {
	m := t.GetMethod()
	safe := m == http.MethodGet || m == http.MethodHead
	same := safe || m == http.MethodPut || m == http.MethodDelete
	repeatable = safe || t.GetIdempotencyHeader() != "" || same && t.GetRepeatable()
	switch {
	case safe && t.GetReads():
		return reads, true
	case repeatable && t.GetRepeatable():
		return idempotent, true
	}
	return opaque, repeatable
}

// Bounds of what is sent again. The broker's own tries are short: the engine's are
// durable, and come after them.
const (
	DefaultRetries = 2
	MaxRetries     = 5
	firstPause     = 250 * time.Millisecond
	mostPause      = 4 * time.Second
	mostWaits      = 10 * time.Second // of all pauses of a call together
)

// answersAgain are the statuses after which a class is sent again. What only reads
// is repeated after every answer that is nobody's word on it. An effect is repeated
// only where the upstream said that it did nothing: what a proxy says in its place
// leaves it in doubt, and an effect in doubt is the engine's to send again, which
// remembers that it was (INV-5).
var answersAgain = map[class][]int{
	idempotent: {http.StatusTooManyRequests},
	reads:      {http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout},
}

// answer sends a request until it has an answer that stands.
func (s *sending) answer(ctx context.Context, req *http.Request) (last *Answer, err error) {
	for tries := 1; ; tries++ {
		a, err := s.once(ctx, req)
		var never *NotSent
		switch {
		case err == nil:
			last = a
		case last != nil && errors.As(err, &never):
			return last, nil // it was refused before, and this try changed nothing
		case last != nil || !errors.As(err, &never) || protocol.CodeOf(never.Err) != protocol.CodeUnavailable:
			return nil, err
		}
		if !s.prepareAgain(ctx, req, last, tries) {
			return last, err
		}
	}
}

// prepareAgain waits for the next try, or says that there is none.
func (s *sending) prepareAgain(ctx context.Context, req *http.Request, a *Answer, tries int) bool {
	if s.r.class == opaque {
		return false
	}
	if a != nil && a.Status == http.StatusUnauthorized {
		return s.renew(ctx) && s.leaves(req)
	}
	if a != nil && !slices.Contains(answersAgain[s.r.class], a.Status) || tries > s.r.d.cfg.Retries {
		return false
	}
	pause := min(firstPause<<(tries-1), mostPause)
	pause = time.Duration(float64(pause) * (0.5 + rand.Float64()/2))
	if a != nil && a.retry > 0 {
		pause = a.retry
	}
	// A wish to wait is never cut short: either it fits, or there is no next try.
	if end, ok := ctx.Deadline(); pause > mostWaits-s.waited || ok && pause >= time.Until(end) {
		return false
	}
	s.waited += pause
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	}
	return s.leaves(req)
}

// renew takes another credential, once in a call.
func (s *sending) renew(ctx context.Context) bool {
	if s.pass.RenewFunc == nil || s.renewed {
		return false
	}
	s.renewed = true
	v, before, err := s.pass.RenewFunc(ctx)
	if err != nil || v.IsZero() || v == s.pass.Credential {
		return false
	}
	s.pass.Before = append(append(before, s.pass.Before...), s.pass.Credential)
	s.pass.Credential = v
	return true
}

// leaves asks again about what is sent again: paths and authority may have changed.
func (s *sending) leaves(req *http.Request) bool {
	return s.flow.Err() == nil && (s.pass.LeavesFunc == nil || s.pass.LeavesFunc(s.r.wire(req)) == nil)
}

// retryAfter reads a header in seconds or as a date (RFC 9110, 10.2.3), up to an hour.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(n, 0), 3600)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), time.Hour)
	}
	return 0
}
