package ledger_test

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/ledger"
)

// tree is a ledger that grows in memory.
type tree struct {
	t      *testing.T
	n      int64
	hashes map[int64]ledger.Hash
}

func (x *tree) read(indexes []int64) ([]ledger.Hash, error) {
	out := make([]ledger.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = x.hashes[at]
	}
	return out, nil
}

// grow by segments whose content hangs from a word.
func (x *tree) grow(n int, word string) {
	x.t.Helper()
	for range n {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", word, x.n))
		first, added, err := ledger.Grow(x.n, ledger.Segment{Session: "ses_01jd0000000000000000000000", From: 1, To: x.n + 1, Hash: sum[:]}, x.read)
		if err != nil {
			x.t.Fatal(err)
		}
		for i, h := range added {
			x.hashes[first+int64(i)] = h
		}
		x.n++
	}
}

func (x *tree) head(epoch uint32) ledger.Head {
	x.t.Helper()
	root, err := ledger.Root(x.n, x.read)
	if err != nil {
		x.t.Fatal(err)
	}
	return ledger.Head{Tenant: protocol.NewID[protocol.TenantKind](time.Now(), rand.Reader), Size: x.n, Root: root, At: time.Now(), Epoch: epoch}
}

func (x *tree) from(earlier int64) []ledger.Hash {
	x.t.Helper()
	proof, err := ledger.ProveFollows(x.n, earlier, x.read)
	if err != nil {
		x.t.Fatal(err)
	}
	return proof
}

func grown(t *testing.T, n int, word string) *tree {
	x := &tree{t: t, hashes: map[int64]ledger.Hash{}}
	x.grow(n, word)
	return x
}

// A ledger that grew follows at every pair of sizes; no other proof, root, size or
// life does, and each refusal says which break it is, with what mends it.
func TestFollows(t *testing.T) {
	for size := 1; size <= 20; size++ {
		x := grown(t, size, "a")
		last := x.head(7)
		for more := range 20 {
			if more > 0 {
				x.grow(1, "a")
			}
			next, proof := x.head(7), x.from(last.Size)
			if err := next.Follows(last, proof); err != nil {
				t.Fatalf("%d after %d: %v", next.Size, last.Size, err)
			}
			if more == 0 {
				continue
			}
			for i := range proof {
				bad := slices.Clone(proof)
				bad[i][3] ^= 1
				if err := next.Follows(last, bad); breakOf(err) != ledger.BreakFork {
					t.Errorf("%d after %d with proof %d altered: %v", next.Size, last.Size, i, err)
				}
			}
		}
	}
	whole := grown(t, 9, "a")
	last := whole.head(7)
	other := grown(t, 12, "b")
	short := grown(t, 8, "a")
	for name, c := range map[string]struct {
		next  ledger.Head
		proof []ledger.Hash
		want  ledger.Break
		code  protocol.Code
		says  string
	}{
		"another of the same size": {grown(t, 9, "b").head(7), nil, ledger.BreakFork, protocol.CodeDataLoss, "two databases"},
		"another that is longer":   {other.head(7), other.from(9), ledger.BreakFork, protocol.CodeDataLoss, "two databases"},
		"without a proof":          {grown(t, 10, "a").head(7), nil, ledger.BreakFork, protocol.CodeDataLoss, "two databases"},
		"its own beginning":        {short.head(7), nil, ledger.BreakShorter, protocol.CodeDataLoss, "restore --in-place"},
		"an earlier life":          {whole.head(6), nil, ledger.BreakEarlier, protocol.CodeStaleFence, "old database"},
		"restored and shorter":     {short.head(8), nil, ledger.BreakRestored, protocol.CodeFailedPrecondition, "ledger accept --epoch 8"},
		"restored and other":       {other.head(8), other.from(9), ledger.BreakRestored, protocol.CodeFailedPrecondition, "ledger accept --epoch 8"},
	} {
		err := c.next.Follows(last, c.proof)
		if breakOf(err) != c.want || protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	whole.grow(1, "a") // restored, and nothing is lost
	if err := whole.head(8).Follows(last, whole.from(9)); err != nil {
		t.Errorf("restored with all of it: %v", err)
	}
}

func breakOf(err error) ledger.Break {
	var r *ledger.Refusal
	if errors.As(err, &r) {
		return r.Break
	}
	return ""
}
