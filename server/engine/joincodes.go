package engine

import (
	"context"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// Life of a join code: minutes.
const (
	defaultJoinTTL = 10 * time.Minute
	maxJoinTTL     = time.Hour
)

// bindable are what a binding may name: the fixed device actions, and whole turns
// in a sandbox.
var bindable = []string{"files.list", "files.read", "files.write", execution.ActionTurn}

// NewJoinCode is an invitation to one machine.
type NewJoinCode struct {
	Hash    []byte // SHA-256 of the code's secret part
	Name    string // of the machine; empty: its own
	Actions []string
	TTL     time.Duration // zero: ten minutes
}

// CreateJoinCode keeps an invitation to a machine of the caller's; the code itself
// is never known here.
func (e *Engine) CreateJoinCode(ctx context.Context, c store.Caller, n NewJoinCode) (execution.JoinCode, error) {
	if n.TTL == 0 {
		n.TTL = defaultJoinTTL
	}
	if n.TTL < 0 || n.TTL > maxJoinTTL {
		return execution.JoinCode{}, protocol.Errorf(protocol.CodeInvalidArgument, "a join code lives at most %s: give a shorter --ttl", maxJoinTTL)
	}
	if err := checkBindable(n.Actions); err != nil {
		return execution.JoinCode{}, err
	}
	if n.Name != "" && !principalName.MatchString(n.Name) {
		return execution.JoinCode{}, protocol.Errorf(protocol.CodeInvalidArgument, "a machine's name has 1 to 63 lower-case letters, digits and . _ @ -; %q is none", n.Name)
	}
	code := execution.JoinCode{Hash: n.Hash, Tenant: c.Tenant(), Principal: c.Principal(), Name: n.Name, Actions: n.Actions}
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		if err := nameFree(tx, code.Principal, n.Name, "bivouac edge invite --name OTHER"); err != nil {
			return err
		}
		code.CreatedAt, code.ExpiresAt = tx.Now, tx.Now.Add(n.TTL)
		return tx.InsertJoinCode(code)
	})
	return code, err
}

// CheckActions refuses what no binding may name, for configurations.
func CheckActions(actions []string) error { return checkBindable(actions) }

func checkBindable(actions []string) error {
	for _, a := range actions {
		if !slices.Contains(bindable, a) {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no action of a machine: choose from %v", a, bindable)
		}
	}
	return nil
}
