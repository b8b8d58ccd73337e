package vaultpolicy

import (
	"context"
	"log/slog"
)

// complaint says what is wrong once, and when it is over: a server may be away for
// hours.
type complaint struct {
	log  *slog.Logger
	what string
	said string
}

// about an outcome. It reports whether something is wrong.
func (c *complaint) about(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil:
		return err != nil // nobody wants to know any more
	case err == nil && c.said != "":
		c.log.InfoContext(ctx, c.what+": it is over")
		c.said = ""
	case err != nil && err.Error() != c.said:
		c.log.WarnContext(ctx, c.what, "error", err)
		c.said = err.Error()
	}
	return err != nil
}
