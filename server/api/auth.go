package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1/apiv1connect"
	"bivouac/server/intercept"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// login is who calls, as the durable store says it: there is no cache, so a
// disabled principal's next call is refused.
type login struct {
	principal policy.Principal
	tenant    policy.Tenant
}

// caller of the store for this login.
func (l login) caller() store.Caller {
	return store.AsPrincipal(l.tenant.ID, l.principal.ID, l.principal.Admin)
}

type loginKey struct{}

// loginOf is the login of an authenticated call. The authenticator ran before
// every handler, so its absence is a fault of ours and answered as nobody.
func loginOf(ctx context.Context) login {
	l, _ := ctx.Value(loginKey{}).(login)
	return l
}

// callerOf turns the login into the parameter that every store method takes.
func callerOf(ctx context.Context) store.Caller { return loginOf(ctx).caller() }

// requireAdmin refuses a principal that does not manage its tenant.
func requireAdmin(ctx context.Context, what string) error {
	l := loginOf(ctx)
	if l.principal.Admin {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied,
		"%s may not %s: only an admin of %s may; ask one, or log in as one with bivouac login URL --token-file FILE", l.principal.Name, what, l.tenant.Name)
}

// authenticator finds the principal of the bearer token. INV-9 begins here.
type authenticator struct{ store *store.Store }

// changesAuthority names the calls that change what somebody may do, or decide
// what was left open: their log lines are for the audit.
var changesAuthority = map[string]bool{
	apiv1connect.ApprovalServiceDecideApprovalProcedure:     true,
	apiv1connect.TurnServiceResolveUnknownProcedure:         true,
	apiv1connect.AgentServiceApplyAgentProcedure:            true,
	apiv1connect.AgentServiceRecreateInstanceProcedure:      true,
	apiv1connect.PrincipalServiceAddPrincipalProcedure:      true,
	apiv1connect.PrincipalServiceDisablePrincipalProcedure:  true,
	apiv1connect.RunnerAdminServiceCreateJoinCodeProcedure:  true,
	apiv1connect.RunnerAdminServiceRevokeRunnerProcedure:    true,
	apiv1connect.RunnerAdminServicePutBindingProcedure:      true,
	apiv1connect.RunnerAdminServiceDeleteBindingProcedure:   true,
	apiv1connect.GrantServiceCreateGrantProcedure:           true,
	apiv1connect.GrantServiceRevokeGrantProcedure:           true,
	apiv1connect.GrantServiceRotateGrantProcedure:           true,
	apiv1connect.CredentialServicePutCredentialProcedure:    true,
	apiv1connect.CredentialServiceDeleteCredentialProcedure: true,
}

func (a authenticator) admit(ctx context.Context, c intercept.Call) (context.Context, error) {
	ctx, err := a.authenticate(ctx, c.Header)
	if err == nil && changesAuthority[c.Procedure] {
		intercept.Keep(ctx)
	}
	return ctx, err
}

func (a authenticator) authenticate(ctx context.Context, h http.Header) (context.Context, error) {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, refused("the call has no bearer token")
	}
	// Every token that is presented costs one hash and one lookup, whatever it
	// looks like, so that time tells nothing about which tokens exist.
	var l login
	err := a.store.Lookup(ctx, store.AsLoop("authenticate"), func(tx *store.Tx) (err error) {
		l.principal, l.tenant, err = tx.PrincipalByToken(hashToken(token))
		return err
	})
	switch {
	case err == nil && l.principal.DisabledAt.IsZero():
		if err := policy.MayProve(policy.Subject(l.principal.Kind), policy.ProofToken); err != nil {
			return nil, err
		}
	case err == nil || errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}):
		if !wellFormed(token) {
			return nil, refused("the bearer token is malformed: it must be bvt_ and 52 letters and digits")
		}
		return nil, refused("the bearer token is not valid here: it is unknown, or its principal is disabled. An admin makes a good one with bivouac principal add NAME --token-file FILE; that of bivouac dev is the file token in its --data")
	default:
		return nil, err
	}
	intercept.Annotate(ctx, slog.String("principal", l.principal.ID.String()), slog.String("tenant", l.tenant.ID.String()))
	return context.WithValue(ctx, loginKey{}, l), nil
}

func refused(why string) error {
	return protocol.Errorf(protocol.CodeUnauthenticated, "%s; log in with bivouac login URL --token-file FILE", why)
}
