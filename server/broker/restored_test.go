package broker_test

import (
	"path/filepath"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/protocol/brokerv1"
)

// INV-13: a keyring that was brought back from before a revocation goes on with what it
// has, and takes the revocation from the feed: open flows end, and it is durable.
func TestRevokedSinceTheKeyringsBackup(t *testing.T) {
	var dir string
	inWorldAfter(t, func(w *world) {
		phrase := func() (string, error) { return "four words nobody says", nil }
		file := filepath.Join(t.TempDir(), "copy")
		_, err := keyring.Backup(w.dir, file, phrase, nil)
		w.must(err)
		_, err = w.keys.RevokeGrant(t.Context(), w.grant.ID) // since
		w.must(err)
		w.must(w.keys.Close())
		dir = filepath.Join(t.TempDir(), "again")
		_, err = keyring.Restore(file, dir, phrase)
		w.must(err)
		w.keys, err = keyring.Open(dir)
		w.must(err)
		w.dir, w.outside = dir, newOutside(w.keys)
	}, func(t *testing.T, w *world) {
		w.must(w.keys.Alive(t.Context(), w.grant.ID)) // as of the backup
		doomed := w.open(w.as(w.serverCert), w.claims(nil))
		w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_GRANT, w.grant.ID.String(), 1<<63-1)
		if err := <-doomed.done; protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("the flow ended with %v", err)
		}
		time.Sleep(time.Second)
		w.must(w.keys.Close())
		again, err := keyring.Open(dir)
		w.must(err)
		defer again.Close()
		if err := again.Alive(t.Context(), w.grant.ID); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("in the restored keyring: %v", err)
		}
	})
}
