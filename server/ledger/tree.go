package ledger

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
)

// Hash of a node of the tree.
type Hash = tlog.Hash

// ReadFunc reads stored hashes by their index in the store.
type ReadFunc func(indexes []int64) ([]Hash, error)

// ReadHashes is tlog.HashReader's.
func (f ReadFunc) ReadHashes(indexes []int64) ([]Hash, error) { return f(indexes) }

// Grow gives the hashes that segment number n (from zero) adds to the store, and
// the index of the first of them.
func Grow(n int64, s Segment, read ReadFunc) (first int64, hashes []Hash, err error) {
	hashes, err = tlog.StoredHashes(n, s.Text(), read)
	return tlog.StoredHashIndex(0, n), hashes, err
}

// Root of the tree of the first size segments.
func Root(size int64, read ReadFunc) (Hash, error) { return tlog.TreeHash(size, read) }

// Prove leads from segment n to the root of size segments.
func Prove(size, n int64, read ReadFunc) ([]Hash, error) { return tlog.ProveRecord(size, n, read) }

// Head is the state of a tenant's tree at a time.
type Head struct {
	Tenant protocol.TenantID
	Size   int64
	Root   Hash
	At     time.Time
	// Epoch of the store: a restore raises it. Zero in heads that were signed before
	// they said it.
	Epoch uint32
}

// headJSON is what is signed, in canonical form.
type headJSON struct {
	At     string `json:"at"`
	Epoch  uint32 `json:"epoch,omitempty"`
	Kind   string `json:"kind"`
	Root   string `json:"root"`
	Size   int64  `json:"size"`
	Tenant string `json:"tenant"`
}

// headKind tells a head from the receipts that the same key signs.
const headKind = "bivouac-ledger-head-v1"

// Receipt is the head as the receipt key signs it.
func (h Head) Receipt() ([]byte, error) {
	b, err := json.Marshal(headJSON{
		At: h.At.UTC().Format(time.RFC3339Nano), Epoch: h.Epoch, Kind: headKind, Size: h.Size, Tenant: h.Tenant.String(),
		Root: base64.StdEncoding.EncodeToString(h.Root[:]),
	})
	if err != nil {
		return nil, err
	}
	return canonical.Canonical(b)
}

// IsHead tells a head from the other receipts, also one that cannot be read.
func IsHead(receipt []byte) bool {
	var j struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(receipt, &j) == nil && j.Kind == headKind
}

// ReadHead reads what is signed, or is to be.
func ReadHead(receipt []byte) (Head, error) {
	var j headJSON
	bad := protocol.Errorf(protocol.CodeDataLoss, "what was signed is no head of a ledger")
	if err := json.Unmarshal(receipt, &j); err != nil || j.Kind != headKind || j.Size < 0 {
		return Head{}, bad
	}
	root, err := base64.StdEncoding.DecodeString(j.Root)
	if err != nil || len(root) != len(Hash{}) {
		return Head{}, bad
	}
	h := Head{Tenant: protocol.TenantID(j.Tenant), Size: j.Size, Root: Hash(root), Epoch: j.Epoch}
	if h.At, err = time.Parse(time.RFC3339Nano, j.At); err != nil {
		return Head{}, bad
	}
	return h, nil
}
