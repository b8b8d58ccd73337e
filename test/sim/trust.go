package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"time"

	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// trust is the root key and the server's certified signing key. They are the
// same in every run: nothing depends on them.
type trust struct {
	root      *capability.Key
	signer    *capability.Signer
	statement string
}

// longerThanAnyRun is how long the signing key is certified.
const longerThanAnyRun = 24 * time.Hour

func newTrust() (*trust, error) {
	t := &trust{root: fixedKey("root"), signer: &capability.Signer{}}
	k := fixedKey("signing")
	k.NotAfter = time.Now().Add(longerThanAnyRun)
	var err error
	if k.Statement, err = capability.Certify(t.root.Private, "server", k.Public(), time.Now(), k.NotAfter); err != nil {
		return nil, err
	}
	t.statement = k.Statement
	return t, t.signer.Use(k)
}

func fixedKey(of string) *capability.Key {
	seed := sha256.Sum256([]byte(of))
	private := ed25519.NewKeyFromSeed(seed[:])
	return &capability.Key{ID: capability.KeyID(private.Public().(ed25519.PublicKey)), Private: private}
}

// floorFeed is the server's side of the feed: what it read of the store last.
type floorFeed struct {
	all    []policy.Floor
	cursor int64
	stale  bool // a floor was committed since
}

// reading is one message of the feed: the floors after a sequence, or all. It says when the store was read, and only
// a completed reading does.
func (s *Sim) reading(after int64, snapshot bool) *brokerv1.FeedResponse {
	f := &s.floors
	if f.stale {
		f.stale = false
		err := s.store.View(context.Background(), store.AsLoop("feed"), func(tx *store.Tx) (err error) {
			f.all, f.cursor, err = tx.Floors(0, 0)
			return err
		})
		if err != nil {
			s.violate("the feed cannot read the store: %v", err)
		}
	}
	m := &brokerv1.FeedResponse{StoreReadUs: time.Now().UnixMicro(), Cursor: f.cursor, Snapshot: snapshot}
	if snapshot {
		m.SigningStatements = []string{s.trust.statement}
	}
	for _, fl := range f.all {
		if snapshot || fl.Seq > after {
			m.Floors = append(m.Floors, &brokerv1.Floor{Seq: fl.Seq, Kind: brokerv1.FloorKind(fl.Kind), Id: fl.ID, Minimum: fl.Minimum})
		}
	}
	return m
}
