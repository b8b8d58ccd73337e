package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/api"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// Bootstrap makes the first principal of a deployment, with the machine in hand
// instead of a login.
type Bootstrap struct {
	Config Config
	// Tenant of the principal; it is made when absent.
	Tenant string
	// Principal's name; it becomes an admin and an operator.
	Principal string
	// TokenFile gets the token, 0600. When it holds one that works, nothing is
	// done: the command may repeat.
	TokenFile string
}

// Run opens the store for itself: a running server holds it.
func (b Bootstrap) Run(ctx context.Context) (policy.Principal, error) {
	s, err := openStore(ctx, b.Config)
	if err != nil {
		return policy.Principal{}, err
	}
	p, err := b.in(ctx, s)
	return p, errors.Join(err, s.Close())
}

// in does it in an open store. The token is on disk before the principal is in
// the store: a crash between the two is mended by the same command.
func (b Bootstrap) in(ctx context.Context, s *store.Store) (policy.Principal, error) {
	token, err := b.token()
	if err != nil {
		return policy.Principal{}, err
	}
	var p policy.Principal
	err = s.View(ctx, store.AsOperator("bootstrap"), func(tx *store.Tx) (err error) {
		p, _, err = tx.PrincipalByToken(token.Hash())
		return err
	})
	if !errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		return p, err
	}
	p, err = engine.AddOperator(ctx, s, engine.NewPrincipal{Tenant: b.Tenant, Name: b.Principal, TokenHash: token.Hash()})
	if errors.Is(err, &protocol.Error{Code: protocol.CodeAlreadyExists}) {
		if old, operr := b.existing(ctx, s); operr == nil && !old.DisabledAt.IsZero() {
			return p, protocol.Errorf(protocol.CodeFailedPrecondition,
				"%s of %s was disabled, and %s may hold its token: have another admin run `bivouac principal add NAME --admin --token-file FILE`, and put that token into %s", b.Principal, b.Tenant, b.TokenFile, b.TokenFile)
		}
		return p, protocol.Errorf(protocol.CodeAlreadyExists,
			"%s exists already in %s, and %s does not hold its token: point --token-file at the one that does, or choose another --principal", b.Principal, b.Tenant, b.TokenFile)
	}
	return p, err
}

// existing principal of that name.
func (b Bootstrap) existing(ctx context.Context, s *store.Store) (p policy.Principal, err error) {
	err = s.View(ctx, store.AsOperator("bootstrap"), func(tx *store.Tx) error {
		all, err := tx.Principals()
		for _, one := range all {
			if one.Name != b.Principal || !p.ID.IsZero() {
				continue
			}
			if t, terr := tx.Tenant(one.Tenant); terr == nil && t.Name == b.Tenant {
				p = one
			}
		}
		return err
	})
	return p, err
}

// token reads the one in the file, or writes a new one there.
func (b Bootstrap) token() (api.Token, error) {
	text, err := os.ReadFile(b.TokenFile)
	if err == nil {
		t, perr := api.ParseToken(strings.TrimSpace(string(text)))
		if perr != nil {
			return t, protocol.Errorf(protocol.CodeAlreadyExists, "%s exists and holds no token: choose another --token-file", b.TokenFile)
		}
		return t, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return api.Token{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the token file cannot be read: %w", err)
	}
	t := api.NewToken()
	if err := os.MkdirAll(filepath.Dir(b.TokenFile), 0o700); err != nil {
		return t, protocol.Errorf(protocol.CodeFailedPrecondition, "the token file cannot be written: %w", err)
	}
	f, err := os.OpenFile(b.TokenFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return t, protocol.Errorf(protocol.CodeFailedPrecondition, "the token file cannot be written: %w", err)
	}
	_, err = f.WriteString(t.Reveal() + "\n")
	return t, errors.Join(err, f.Sync(), f.Close())
}
