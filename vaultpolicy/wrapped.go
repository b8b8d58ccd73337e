package vaultpolicy

import (
	"context"
	"errors"
	"os"
	"time"

	"bivouac/edge/finding"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
)

const whyWrapped = "somebody else may have the secret id, and log in as the broker with it"

func sayIntercepted(r *finding.Report, bad *login.Intercepted) {
	r.Bad("vault.wrapped", bad.Error(), whyWrapped, bad.Mend)
}

// examineWrapped looks at a wrapped secret id without opening it. It reports whether
// there is no login before the broker opens it.
func (f File) examineWrapped(ctx context.Context, r *finding.Report, auth login.Auth) bool {
	if auth.Wrapped == "" {
		return false
	}
	c, err := f.Client()
	if err != nil {
		return false // said elsewhere
	}
	defer c.Close()
	left, err := auth.Waits(ctx, c)
	var bad *login.Intercepted
	switch {
	case errors.As(err, &bad):
		sayIntercepted(r, bad)
	case err != nil:
		r.Warn("vault.wrapped", err.Error(), "the broker does not open the wrapped secret id", or(client.Mend(err), "ls -l "+auth.Wrapped+"  (it must be the broker's own, mode 0600)"))
	case left > 0:
		r.Warn("vault.wrapped", "a wrapped secret id waits in "+auth.Wrapped+", for "+left.Round(time.Second).String(), "it is lost when its time is over", "start the broker, which opens it")
	}
	_, missing := os.Stat(auth.File)
	return left > 0 && missing != nil
}
