package assembly

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/keyring"
	"bivouac/vaultpolicy"
)

// MoveReceipt is the file in the data directory that says what was moved, signed.
const MoveReceipt = "vault-move.jws"

// Move brings grants and credentials from the keyring to the server of the vault block.
type Move struct {
	Data, Config string
	Passphrase   keyring.Passphrase
	// Apply does it; otherwise it is only said what would be done.
	Apply bool
	Out   io.Writer
	Log   *slog.Logger
}

// Run moves. Where it is cut off, the same again goes on: what is there already is left
// as it is, and the keyring's own are ended only when everything is there. It reports
// whether something is left to be done.
func (m Move) Run(ctx context.Context) (open bool, err error) {
	cfg, err := broker.LoadConfig(cmp.Or(m.Config, filepath.Join(m.Data, ConfigFile)))
	if err != nil {
		return false, err
	}
	if cfg.Vault == nil {
		return false, protocol.Errorf(protocol.CodeFailedPrecondition, "%s has no vault block: add one that says where grants and credentials go, and run bivouac vault setup --apply (vaultpolicy/README.md)", cmp.Or(m.Config, filepath.Join(m.Data, ConfigFile)))
	}
	c, err := vaultpolicy.Decode(cfg.Vault.Body, cfg.Dir, os.Getenv)
	if err != nil {
		return false, err
	}
	keys, err := keyring.Open(m.Data, m.Passphrase)
	if err != nil {
		return false, err
	}
	defer keys.Close() // only a lock
	what, err := keys.Moving()
	if err != nil {
		return false, err
	}
	v, err := vaultpolicy.New(vaultpolicy.Params{Config: c, Trust: keys, Log: m.Log})
	if err != nil {
		return false, err
	}
	total, done := len(what.Credentials)+len(what.Grants), 0
	if total > 0 {
		err = v.Once(ctx, func(ctx context.Context) error {
			done, err = m.all(ctx, v, what)
			return err
		})
	}
	if err != nil && m.Apply && done > 0 {
		return true, protocol.Errorf(protocol.CodeOf(err), "%d of %d are moved, and the keyring holds all of them still: %w; then run the same command again", done, total, err)
	}
	if err == nil && total == 0 && !m.Apply {
		return false, m.keep("")
	}
	if err != nil || !m.Apply {
		return total > 0, err
	}
	receipt, err := keys.Moved(ctx, c.Address, what)
	if err != nil {
		return true, err
	}
	return false, m.keep(receipt)
}

// all moves credentials first: a grant that is there can be used.
func (m Move) all(ctx context.Context, v *vaultpolicy.Vault, what keyring.Moving) (done int, err error) {
	say := func(name string, step vaultpolicy.Step) {
		fmt.Fprintf(m.Out, "%s  %s\n", name, step)
		done++
	}
	for _, c := range what.Credentials {
		step, err := v.MoveCredential(ctx, c.Tenant, c.Name, c.Value, !m.Apply)
		if err != nil {
			return done, err
		}
		say("credential "+c.Name+" of "+c.Tenant.String(), step)
	}
	for _, g := range what.Grants {
		step, err := v.MoveGrant(ctx, g.Grant, g.Part, g.Over, !m.Apply)
		if err != nil {
			return done, err
		}
		say("grant "+g.ID.String()+" of "+g.Principal.String()+" to "+g.Agent, step)
	}
	return done, nil
}

// keep writes the receipt beside the keyring, which has it too.
func (m Move) keep(receipt string) error {
	if receipt == "" {
		fmt.Fprintln(m.Out, "the keyring holds no grant and no credential: there is nothing to move")
		return nil
	}
	path := filepath.Join(m.Data, MoveReceipt)
	if err := durable.Replace(path, []byte(receipt+"\n"), 0o600); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "everything is moved, but the receipt cannot be written to %s: %w; make room, and run the same command again", path, err)
	}
	fmt.Fprintf(m.Out, "everything is moved, and ended in the keyring; the signed receipt is %s\n", path)
	return nil
}
