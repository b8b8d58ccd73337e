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

// INV-13: a keyring of before a renewal says over the wire of which moment it is, so
// that the server renews once more: then neither the part of the backup, which had
// ended, nor the one that the keyring does not know counts, and the next one alone does.
func TestRenewedSinceTheKeyringsBackup(t *testing.T) {
	var old, lost []byte
	var made time.Time
	inWorldAfter(t, func(w *world) {
		phrase := func() (string, error) { return "four words nobody says", nil }
		file, dir := filepath.Join(t.TempDir(), "copy"), filepath.Join(t.TempDir(), "again")
		old = w.sealed
		c, err := keyring.Backup(w.dir, file, phrase, nil)
		w.must(err)
		made = c.MadeAt
		if _, at := w.keys.Restored(); !at.IsZero() {
			t.Errorf("a keyring that was never restored says that it was, at %s", at)
		}
		lost, err = w.keys.RotateGrant(t.Context(), w.grant.ID, "cln_lost")
		w.must(err)
		w.must(w.keys.SettleRotation(t.Context(), w.grant.ID, "cln_lost"))
		w.must(w.keys.Close())
		_, err = keyring.Restore(file, dir, phrase)
		w.must(err)
		w.keys, err = keyring.Open(dir)
		w.must(err)
		w.dir, w.outside = dir, newOutside(w.keys)
	}, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		d, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Current()})
		w.must(err)
		if d.GetGrantsAsOfUs() != made.UnixMicro() || d.GetGrantsRestoredUs() < d.GetGrantsAsOfUs() {
			t.Errorf("it says: grants as of %d, restored %d; the backup is of %d", d.GetGrantsAsOfUs(), d.GetGrantsRestoredUs(), made.UnixMicro())
		}
		works := func(sealed []byte) error {
			w.sealed = sealed
			_, err := server.broker.Invoke(t.Context(), w.invocation(nil, nil))
			return protocol.FromConnect(err)
		}
		if err := works(lost); protocol.DetailOf(err) != protocol.DetailGrantRotated {
			t.Errorf("the part that the backup lacks: %v", err)
		}
		w.must(works(old)) // as of the backup
		in := &brokerv1.RotateGrantRequest{GrantId: w.grant.ID.String(), Rotation: "cln_again"}
		out, err := server.authority.RotateGrant(t.Context(), in)
		w.must(err)
		_, err = server.authority.SettleRotation(t.Context(), &brokerv1.SettleRotationRequest{GrantId: in.GrantId, Rotation: in.Rotation})
		w.must(err)
		w.must(works(out.GetSealed()))
		for what, sealed := range map[string][]byte{"of the backup": old, "that the backup lacks": lost} {
			if err := works(sealed); protocol.DetailOf(err) != protocol.DetailGrantRotated {
				t.Errorf("the part %s, after the renewal: %v", what, err)
			}
		}
	})
}
