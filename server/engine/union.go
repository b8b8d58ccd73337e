package engine

import (
	"errors"
	"fmt"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/session"
)

// A principal may give an agent several grants, and the agent works under all of
// them: a turn stands on the newest, and an action that needs a credential goes out
// under the newest that gives it. Which those may be is frozen with the turn.
// INV-10. One that is taken back ends the actions under it, and the turn only if it
// stood on it. INV-13.

// actionAuthority is the turn's authority with the grant that gives the action its
// credential. When no grant gave it, it is the turn's own, and the broker refuses.
func (w *turnTx) actionAuthority(a session.Action) (*authority, error) {
	auth, err := w.authority()
	if err != nil {
		return nil, err
	}
	tool, _ := auth.snap.Tool(a.Tool)
	if tool.Credential() == "" {
		return auth, nil
	}
	var revoked protocol.GrantID // the newest of those
	for _, id := range auth.snap.Giving(tool.Credential()) {
		g, err := w.tx.Grant(id)
		if err != nil {
			return nil, err
		}
		if g.RevokedAt.IsZero() && !w.e.floors.revoked(id) {
			auth.grant, auth.sealed, auth.credential = g.ID, g.Sealed, tool.Credential()
			return auth, nil
		}
		if revoked == "" {
			revoked = id
		}
	}
	if revoked != "" {
		return nil, &ungranted{revoked, auth.snap.Agent.Name, tool.Credential()}
	}
	return auth, nil
}

// ungranted refuses an action whose credential was taken back. Its turn stands on
// another grant and goes on.
type ungranted struct {
	grant      protocol.GrantID
	agent      string
	credential string
}

func (u *ungranted) Error() string {
	return fmt.Sprintf("the grant %s, which gave the credential %q, was revoked: bivouac grant create --agent %s --credential %s, for the next turn",
		u.grant, u.credential, u.agent, u.credential)
}

func isUngranted(err error) bool {
	var u *ungranted
	return errors.As(err, &u)
}

// withoutGrant settles an action that has lost its credential. What may have left
// before and has an effect is UNKNOWN, as without any answer. INV-5.
func (w *turnTx) withoutGrant(a session.Action, err error) error {
	var u *ungranted
	switch {
	case !errors.As(err, &u):
		return err
	case a.State == session.Reconciling && a.Effect != runtimev1.Effect_EFFECT_READ:
		return w.giveUp(a, u.Error())
	}
	text, evidence := didNotRun, refusedUnsent
	if a.State == session.Reconciling {
		text, evidence = "No answer came, and it may not be asked again: ", joinEvidence(a.Evidence, u.Error())
	}
	return w.settle(a, a.Fence, outcome{event: session.ActionDeny, evidence: evidence,
		result: refuse(a.CallID, statusDenied, protocol.CodePermissionDenied, text+u.Error())})
}
