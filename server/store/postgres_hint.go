package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// hintBytes bounds one notification; PostgreSQL takes 8000.
const hintBytes = 7900

// hints carry wake-ups between the servers of one database by LISTEN and NOTIFY.
// They may be lost: whoever waits scans by itself at its poll, and after each new
// LISTEN everybody here is woken once.
//
// A notification is not part of the transaction that it tells of. NOTIFY holds a
// lock of the whole database during the commit, so that writers would commit one
// after the other; and the hint of a server that dies in between is not missed.
type hints struct {
	store   *Store
	cfg     *pgx.ConnConfig
	channel string
	self    string

	stop context.CancelFunc
	done sync.WaitGroup

	bell chan struct{} // something is pending
	mu   sync.Mutex    // guards pending
	// pending topics share the next notification.
	pending map[Topic]bool
}

func newHints(s *Store, cfg *pgx.ConnConfig, schema string) *hints {
	sum := sha256.Sum256([]byte(schema))
	return &hints{store: s, cfg: cfg, channel: "bivouac_" + hex.EncodeToString(sum[:8]), self: rand.Text(),
		bell: make(chan struct{}, 1), pending: map[Topic]bool{}}
}

func (h *hints) start() {
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	h.done.Go(func() { h.keep(ctx, "hints of other servers are not heard", h.listen) })
	h.done.Go(func() { h.keep(ctx, "other servers do not hear hints", h.send) })
}

func (h *hints) close() {
	if h.stop != nil {
		h.stop()
	}
	h.done.Wait()
}

// tell passes committed topics on, without waiting.
func (h *hints) tell(touched map[Topic]bool) {
	if len(touched) == 0 {
		return
	}
	h.mu.Lock()
	for t := range touched {
		h.pending[t] = true
	}
	h.mu.Unlock()
	select {
	case h.bell <- struct{}{}:
	default:
	}
}

// keep runs work on a connection of its own, again and again until ctx ends.
func (h *hints) keep(ctx context.Context, loss string, work func(context.Context, *pgx.Conn) error) {
	for race := 4; ctx.Err() == nil; race++ {
		err := h.connected(ctx, work)
		if ctx.Err() != nil {
			return
		}
		h.store.log.Warn(loss+"; the slow poll goes on", "error", err)
		pauseAfterRace(ctx, race)
	}
}

func (h *hints) connected(ctx context.Context, work func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, h.cfg.Copy())
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(end) // nothing to lose
	}()
	return work(ctx, conn)
}

// listen wakes whoever waits here for what others committed. LISTEN comes first
// and then everybody looks once: what was committed before it is found by that.
func (h *hints) listen(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{h.channel}.Sanitize()); err != nil {
		return err
	}
	h.store.topics.wakeAll()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		from, topics, _ := strings.Cut(n.Payload, "\n")
		if from == h.self {
			continue
		}
		touched := map[Topic]bool{}
		for t := range strings.SplitSeq(topics, "\n") {
			touched[Topic(t)] = true
		}
		h.store.topics.wake(touched)
	}
}

// send tells others, as many topics at once as came together meanwhile. Its own
// commits wait for no disk: nothing depends on them.
func (h *hints) send(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.bell:
		}
		for _, payload := range h.take() {
			if _, err := conn.Exec(ctx, `SELECT pg_notify($1, $2)`, h.channel, payload); err != nil {
				return err
			}
		}
	}
}

// take empties pending into payloads.
func (h *hints) take() (payloads []string) {
	h.mu.Lock()
	all := h.pending
	h.pending = make(map[Topic]bool, len(all))
	h.mu.Unlock()
	next := h.self
	for t := range all {
		if len(next)+1+len(t) > hintBytes {
			payloads, next = append(payloads, next), h.self
		}
		next += "\n" + string(t)
	}
	if next != h.self {
		payloads = append(payloads, next)
	}
	return payloads
}
