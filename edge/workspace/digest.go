package workspace

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// treeDigest is SHA-256 over the entries of a tree in the order of their names,
// each part with its length before it.
type treeDigest struct{ hash hash.Hash }

func newTreeDigest() *treeDigest { return &treeDigest{hash: sha256.New()} }

func (d *treeDigest) file(name string, exec bool, content []byte) {
	kind := "file"
	if exec {
		kind = "exec"
	}
	d.parts([]byte(kind), []byte(name), content)
}

func (d *treeDigest) link(name, target string) {
	d.parts([]byte("link"), []byte(name), []byte(target))
}

func (d *treeDigest) parts(parts ...[]byte) {
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		d.hash.Write(n[:])
		d.hash.Write(p)
	}
}

func (d *treeDigest) text() string { return hex.EncodeToString(d.hash.Sum(nil)) }
