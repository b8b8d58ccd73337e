package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
)

// Take is how this machine takes its connection row at the server. The nonces are
// on the disk before they are sent, so that a machine which broke off anywhere is
// still known as the one that it was, and one that runs on a copy of this
// directory is not.
type Take struct {
	// LastEpoch and LastNonce are of the last connection; zero at first.
	LastEpoch int64  `json:"last_epoch"`
	LastNonce string `json:"last_nonce"`
	// Nonce of the one that is being taken.
	Nonce string `json:"nonce,omitempty"`
}

// Taking is the take that is open, or a new one.
func (d *Dir) Taking() (Take, error) {
	t := d.take()
	if t.Nonce != "" {
		return t, nil
	}
	var b [16]byte
	rand.Read(b[:])
	t.Nonce = hex.EncodeToString(b[:])
	return t, d.saveTake(t)
}

// Taken closes a take with the epoch that it brought.
func (d *Dir) Taken(t Take, epoch int64) error {
	return d.saveTake(Take{LastEpoch: epoch, LastNonce: t.Nonce})
}

// Epoch last held; zero at first.
func (d *Dir) Epoch() int64 { return d.take().LastEpoch }

// take reads what is kept. A file that cannot be read, or of an earlier version
// that kept the bare number, is no memory: the server decides.
func (d *Dir) take() (t Take) {
	b, err := os.ReadFile(d.file("epoch"))
	if err != nil || json.Unmarshal(b, &t) == nil {
		return t
	}
	_ = json.Unmarshal(b, &t.LastEpoch)
	return t
}

func (d *Dir) saveTake(t Take) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return d.write("epoch", append(b, '\n'), 0o600)
}
