// Package witness remembers the last head of every tenant's ledger that this broker
// signed, and signs none that does not follow it.
//
// It guarantees that what it remembers is on the disk before a head is signed, so
// that a broker that starts again knows no less; and that two servers, or one whose
// database was changed or brought back, cannot have two histories signed under one
// root. A restore may lose the end of a ledger: its store has a higher epoch, and
// the first head of that life may begin anew once a person has accepted the epoch,
// of those that servers have shown, which is noted here for good. A broker that has lost its memory believes the first
// head it sees, and says so in its log.
//
// It refuses to mend anything itself, and to know what is in a ledger. Test it with
// go test alone.
package witness

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/server/ledger"
)

// Names inside the broker's data directory.
const (
	HeadsFile   = "ledger-heads.json"
	acceptedDir = "accepted-restores"
)

// maxRestarts of a tenant's ledger that are remembered, newest last.
const maxRestarts = 32

// Seen is what is remembered of one tenant.
type Seen struct {
	Head ledger.Head
	// Restarts are the accepted restores after which the ledger did not go on from
	// what was signed.
	Restarts []Restart
	// Waiting are restored ledgers that were shown and that nobody has accepted,
	// newest last.
	Waiting []Waiting
}

// Waiting is one of them, by the life of its store.
type Waiting struct {
	Epoch uint32    `json:"epoch"`
	Size  int64     `json:"segments"`
	At    time.Time `json:"first_shown_at"`
}

// maxWaiting bounds what servers can have noted of one tenant.
const maxWaiting = 8

// Restart is one of them.
type Restart struct {
	At         time.Time `json:"at"`
	FromEpoch  uint32    `json:"from_epoch"`
	ToEpoch    uint32    `json:"to_epoch"`
	LostAfter  int64     `json:"signed_segments"`
	BeganAgain int64     `json:"segments_after_restore"`
}

// Witness is the memory of one broker. It is safe for concurrent use.
type Witness struct {
	dir string // empty: nothing outlasts the process
	log *slog.Logger

	mu   sync.Mutex // guards seen, and the order of the file's writes
	seen map[protocol.TenantID]Seen
}

// Open reads what a broker of this directory has seen; an empty one is memory only.
func Open(dir string, log *slog.Logger) (*Witness, error) {
	w := &Witness{dir: dir, log: log, seen: map[protocol.TenantID]Seen{}}
	if dir == "" {
		return w, nil
	}
	all, err := Read(dir)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		w.seen[s.Head.Tenant] = s
	}
	return w, nil
}

// Last head of a tenant's ledger; the zero Head when none was seen.
func (w *Witness) Last(t protocol.TenantID) ledger.Head {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[t].Head
}

// Take makes head the last one of its tenant, durably, or refuses it. after is the
// size of the last head that the server was told, from which its proof leads; when
// another was taken meanwhile, it is to ask again.
func (w *Witness) Take(head ledger.Head, after int64, proof []ledger.Hash) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen[head.Tenant]
	last := seen.Head
	if after != last.Size {
		return protocol.Errorf(protocol.CodeConflict, "the ledger of tenant %s was signed up to segment %d, and the proof leads from %d: ask for the last head again", head.Tenant, last.Size, after)
	}
	err := head.Follows(last, proof)
	var refusal *ledger.Refusal
	if errors.As(err, &refusal) && refusal.Break == ledger.BreakRestored && w.accepted(head.Epoch) {
		seen.Restarts = append(seen.Restarts, Restart{At: time.Now().UTC(), FromEpoch: last.Epoch, ToEpoch: head.Epoch, LostAfter: last.Size, BeganAgain: head.Size})
		seen.Restarts = seen.Restarts[max(0, len(seen.Restarts)-maxRestarts):]
		w.log.Warn("a restored ledger begins anew, as was accepted", "tenant", head.Tenant, "epoch", head.Epoch, "segments", head.Size,
			"signed_before", last.Size, "root_before", base64.StdEncoding.EncodeToString(last.Root[:]))
		err = nil
	}
	if err != nil {
		w.log.Error("A LEDGER DOES NOT FOLLOW WHAT WAS SIGNED", "tenant", head.Tenant, "error", err)
		if refusal != nil && refusal.Break == ledger.BreakRestored {
			return errors.Join(err, w.announcedLocked(head, seen))
		}
		return err
	}
	if last.Size == 0 {
		w.log.Info("the first head of a ledger that this broker sees", "tenant", head.Tenant, "segments", head.Size, "epoch", head.Epoch)
	}
	seen.Head = head
	seen.Waiting = slices.DeleteFunc(slices.Clone(seen.Waiting), func(o Waiting) bool { return o.Epoch <= head.Epoch })
	return w.keepLocked(head.Tenant, seen)
}

// announcedLocked notes that a server has shown the ledger of a restored store, so that
// a person can accept that life, and no other.
func (w *Witness) announcedLocked(head ledger.Head, seen Seen) error {
	if slices.ContainsFunc(seen.Waiting, func(o Waiting) bool { return o.Epoch == head.Epoch }) {
		return nil
	}
	seen.Waiting = append(slices.Clone(seen.Waiting), Waiting{Epoch: head.Epoch, Size: head.Size, At: time.Now().UTC()})
	seen.Waiting = seen.Waiting[max(0, len(seen.Waiting)-maxWaiting):]
	return w.keepLocked(head.Tenant, seen)
}

// keepLocked writes before it remembers.
func (w *Witness) keepLocked(t protocol.TenantID, s Seen) error {
	next := maps.Clone(w.seen)
	next[t] = s
	if w.dir != "" {
		if err := write(w.dir, next); err != nil {
			return protocol.Errorf(protocol.CodeUnavailable, "the last head of a ledger cannot be kept, so it is not signed: %w; mend the broker's disk", err)
		}
	}
	w.seen = next
	return nil
}

func (w *Witness) accepted(epoch uint32) bool {
	if w.dir == "" {
		return false
	}
	_, err := os.Stat(acceptedPath(w.dir, epoch))
	return err == nil
}

func acceptedPath(dir string, epoch uint32) string {
	return filepath.Join(dir, acceptedDir, strconv.FormatUint(uint64(epoch), 10))
}

// Accept says that the store was restored on purpose: the ledgers of the life with
// this epoch may begin anew, once each. It must be one that a server has shown: a
// number that was mistyped would be taken for the word that is still missing. It
// works while a broker runs.
func Accept(dir string, epoch uint32) error {
	if epoch == 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "an epoch is a positive number: bivouac restore says which one it gave")
	}
	if _, err := os.Stat(dir); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%w; name the broker's directory with --data", err)
	}
	if _, err := os.Stat(acceptedPath(dir, epoch)); err == nil {
		return nil
	}
	seen, err := Read(dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(seen, func(s Seen) bool { return s.waits(epoch) }) {
		return notShown(dir, epoch, seen)
	}
	if err := os.MkdirAll(filepath.Join(dir, acceptedDir), 0o700); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "it cannot be noted that the restore is accepted: %w; mend the disk", err)
	}
	note := []byte("accepted " + time.Now().UTC().Format(time.RFC3339) + "\n")
	if err := durable.Replace(acceptedPath(dir, epoch), note, 0o600); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "it cannot be noted that the restore is accepted: %w; mend the disk", err)
	}
	return nil
}

func (s Seen) waits(epoch uint32) bool {
	return slices.ContainsFunc(s.Waiting, func(o Waiting) bool { return o.Epoch == epoch })
}

// notShown names what can be accepted instead.
func notShown(dir string, epoch uint32, seen []Seen) error {
	mend := "a restored server that has lost what was signed shows it within half a minute of the first turn that runs there, and bivouac doctor says so then; one that lost nothing needs no word"
	for _, s := range seen {
		for _, o := range s.Waiting {
			mend = fmt.Sprintf("the one of tenant %s waits since %s: bivouac-broker ledger accept --epoch %d --data %s", s.Head.Tenant, o.At.Format(time.RFC3339), o.Epoch, dir)
		}
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "no server has shown this broker a restored ledger of epoch %d, so there is nothing to accept; %s", epoch, mend)
}

// record is one tenant in the file.
type record struct {
	Tenant   protocol.TenantID `json:"tenant"`
	Size     int64             `json:"size"`
	Root     []byte            `json:"root"`
	Epoch    uint32            `json:"epoch"`
	At       time.Time         `json:"at"`
	Restarts []Restart         `json:"restarts,omitempty"`
	Waiting  []Waiting         `json:"waiting,omitempty"`
}

func write(dir string, seen map[protocol.TenantID]Seen) error {
	all := []record{}
	for _, t := range slices.Sorted(maps.Keys(seen)) {
		s := seen[t]
		all = append(all, record{t, s.Head.Size, s.Head.Root[:], s.Head.Epoch, s.Head.At, s.Restarts, s.Waiting})
	}
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, HeadsFile), append(b, '\n'), 0o600)
}

// Read what a broker of a directory has seen, by tenant. It works while one runs.
func Read(dir string) ([]Seen, error) {
	path := filepath.Join(dir, HeadsFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "what was signed of the ledgers cannot be read: %w", err)
	}
	var all []record
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, lost(path, err.Error())
	}
	out := make([]Seen, 0, len(all))
	for _, r := range all {
		if r.Tenant == "" || r.Size < 1 || len(r.Root) != len(ledger.Hash{}) {
			return nil, lost(path, "the head of tenant "+r.Tenant.String()+" cannot be")
		}
		out = append(out, Seen{ledger.Head{Tenant: r.Tenant, Size: r.Size, Root: ledger.Hash(r.Root), Epoch: r.Epoch, At: r.At}, r.Restarts, r.Waiting})
	}
	return out, nil
}

func lost(path, why string) error {
	return protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: %s; restore it from a backup, or remove it: then the first heads that are shown are believed", path, why)
}
