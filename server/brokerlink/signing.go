package brokerlink

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// settleTime is the longest that a certified key waits for a broker to read its
// statement from the feed. Without a feed no capability is admitted anyway.
const settleTime = 2 * time.Second

// signing is the life of the hourly keys: made, certified, published in the
// feed, used. A key signs only after its statement went out, so that no
// capability arrives at a broker before the word about its key.
type signing struct {
	signer *capability.Signer
	wake   chan struct{} // the loop should look again

	mu      sync.Mutex // guards below
	dir     string
	earlier []statement // of keys that another run of this server signed with
	pending *capability.Key
	since   time.Time
	sent    bool
	changed chan struct{} // closed and replaced when the statements change
}

func newSigning(s *capability.Signer, dir string, earlier []statement) *signing {
	return &signing{signer: s, dir: dir, earlier: earlier, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// runSign keeps a certified key in force.
func (l *Link) runSign(ctx context.Context) error {
	back := link.Backoff{Base: retryBase, Max: retryMax}
	for {
		wait, err := l.tickSign(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			l.cfg.Log.WarnContext(ctx, "no signing key was certified", "error", err)
			wait = back.Next()
		} else {
			back.Reset()
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-l.signing.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// tickSign makes one step and says when to look again.
func (l *Link) tickSign(ctx context.Context) (time.Duration, error) {
	s, now := l.signing, time.Now()
	if left, waiting := s.ripen(now); waiting {
		return left, nil
	}
	if !s.signer.Renew(now) {
		return time.Minute, nil
	}
	k, err := l.certifyKey(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.publish(k, now); err != nil {
		return 0, err
	}
	return settleTime, nil
}

func (l *Link) certifyKey(ctx context.Context) (*capability.Key, error) {
	p, err := l.services()
	if err != nil {
		return nil, err
	}
	k, err := capability.NewKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	res, err := p.trust.CertifySigningKey(ctx, &brokerv1.CertifySigningKeyRequest{PublicKey: k.Public()})
	if err != nil {
		return nil, coded(err)
	}
	if res.GetKeyId() != k.ID {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the broker certified key %s instead of %s", res.GetKeyId(), k.ID)
	}
	k.Statement, k.NotAfter = res.GetStatement(), time.UnixMicro(res.GetNotAfterUs())
	return k, nil
}

// publish keeps the statement before the key signs: what it signs outlives this
// run, and a broker that starts after it must learn of the key all the same.
func (s *signing) publish(k *capability.Key, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := append([]statement{{k.Statement, k.NotAfter}}, inForce(s.earlier, now)...)
	if err := saveStatements(s.dir, kept); err != nil {
		return err
	}
	s.earlier = kept
	s.pending, s.since, s.sent = k, now, false
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// ripen uses the pending key when its statement is out.
func (s *signing) ripen(now time.Time) (left time.Duration, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return 0, false
	}
	if left = s.since.Add(settleTime).Sub(now); !s.sent && left > 0 {
		return left, true
	}
	if err := s.signer.Use(s.pending); err != nil {
		s.pending = nil // an incomplete answer of the broker: ask again
		return 0, false
	}
	s.pending = nil
	return 0, false
}

// Statements are the root's words over every living signing key, newest first.
// changed is closed when there are others.
func (l *Link) Statements() (jws []string, changed <-chan struct{}) {
	s := l.signing
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, e := range inForce(s.earlier, now) {
		jws = append(jws, e.JWS)
	}
	for _, own := range s.signer.Statements(now) {
		if !slices.Contains(jws, own) {
			jws = append(jws, own)
		}
	}
	return jws, s.changed
}

// Delivered says that a broker has had these statements for at least one
// message of the feed.
func (l *Link) Delivered(statements []string) {
	s := l.signing
	s.mu.Lock()
	hit := s.pending != nil && !s.sent && slices.Contains(statements, s.pending.Statement)
	if hit {
		s.sent = true
	}
	s.mu.Unlock()
	if hit {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Certified reports that capabilities can be signed now.
func (l *Link) Certified() bool {
	l.signing.mu.Lock()
	defer l.signing.mu.Unlock()
	n := len(l.signing.signer.Statements(time.Now()))
	return n > 0
}
