package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// canary is in everything that belongs to the owner.
const canary = "canary-7f3a"

// things of one principal, one of each kind.
type things struct {
	session, turn, waiting, unknownTurn string
	approval, approvalDigest            string
	unknown                             string
	artifact                            string
	agent, agentDigest                  string
	runner, binding                     string
	grant                               string
	credential                          string
	principal                           string
}

// absent are ids of the right form that nobody has.
func absent(t things) things {
	fresh := func(id string) string {
		kind, _, _ := strings.Cut(id, "_")
		return kind + "_01aaaaaaaaaaaaaaaaaaaaaaaa"
	}
	return things{
		session: fresh(t.session), turn: fresh(t.turn), waiting: fresh(t.waiting), unknownTurn: fresh(t.unknownTurn),
		approval: fresh(t.approval), approvalDigest: t.approvalDigest, unknown: fresh(t.unknown),
		artifact: "sha256:" + strings.Repeat("0", 64), agent: "nobody", agentDigest: t.agentDigest,
		runner: fresh(t.runner), binding: fresh(t.binding), grant: fresh(t.grant), credential: "nothing", principal: fresh(t.principal),
	}
}

// possess makes one of each for a principal.
func (w *world) possess(c *client.Client, principal string) things {
	w.t.Helper()
	ctx := w.t.Context()
	t := things{principal: principal, credential: canary}
	a := w.apply(c, strings.Replace(clerk, `"clerk"`, `"`+canary+`"`, 1))
	t.agent, t.agentDigest = a.GetName(), a.GetDigest()
	g, err := c.Grants.CreateGrant(ctx, &apiv1.CreateGrantRequest{Agent: t.agent})
	if err != nil {
		w.t.Fatal(err)
	}
	t.grant = g.GetGrant().GetId()
	if t.artifact, _, err = c.PutArtifact(ctx, "workspace", strings.NewReader(canary)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.Credentials.PutCredential(ctx, &apiv1.PutCredentialRequest{Name: t.credential, Sealed: []byte("sealed")}); err != nil {
		w.t.Fatal(err)
	}
	t.runner = w.join(c, canary, "files.read").id
	runners, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
	if err != nil || len(runners.GetRunners()) != 1 || len(runners.GetRunners()[0].GetBindings()) != 1 {
		w.t.Fatalf("runners: %v %v", runners, err)
	}
	t.binding = runners.GetRunners()[0].GetBindings()[0].GetId()

	t.session = w.open(c, t.agent)
	t.turn = w.submit(c, t.session, "m1", canary).GetId()
	w.awaitTurn(c, t.turn, "COMPLETED")
	t.unknownTurn = w.submit(c, t.session, "m2", "post "+canary).GetId()
	turn := w.awaitTurn(c, t.unknownTurn, "UNKNOWN")
	t.unknown = turn.GetActions()[0].GetId()
	t.waiting = w.submit(c, t.session, "m3", "order "+canary).GetId()
	turn = w.awaitTurn(c, t.waiting, "WAITING_APPROVAL")
	list, err := c.Approvals.ListApprovals(ctx, &apiv1.ListApprovalsRequest{})
	if err != nil || len(list.GetApprovals()) != 1 {
		w.t.Fatalf("approvals of %v: %v %v", turn, list, err)
	}
	t.approval, t.approvalDigest = list.GetApprovals()[0].GetId(), list.GetApprovals()[0].GetDigest()
	return t
}

// crossing is one method of the API as somebody calls it about some things.
type crossing struct {
	method string // Service.Method
	call   func(context.Context, *client.Client, things) (proto.Message, error)
	// own: the method names nothing, so a stranger's answer is the stranger's own
	// world and must hold nothing of the owner's.
	own bool
	// ours: within a tenant it is open to others too (agents, runners by admins).
	ours bool
	// operators: it is of all tenants, and for nobody of one.
	operators bool
	// empty: the owner has none of these now.
	empty bool
	// deletes: the rightful call comes last.
	deletes bool
}

func do[Req, Res any](method func(context.Context, *Req) (*Res, error), req *Req) func(context.Context) (proto.Message, error) {
	return func(ctx context.Context) (proto.Message, error) {
		res, err := method(ctx, req)
		if err != nil {
			return nil, err
		}
		return any(res).(proto.Message), nil
	}
}

// crossings has one row a method; a test holds it against the descriptors.
var crossings = []crossing{
	{method: "SessionService.CreateSession", ours: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Sessions.CreateSession, &apiv1.CreateSessionRequest{Agent: t.agent})(ctx)
	}},
	{method: "SessionService.GetSession", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Sessions.GetSession, &apiv1.GetSessionRequest{SessionId: t.session})(ctx)
	}},
	{method: "SessionService.ListSessions", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Sessions.ListSessions, &apiv1.ListSessionsRequest{})(ctx)
	}},
	{method: "TurnService.SubmitTurn", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.SubmitTurn, &apiv1.SubmitTurnRequest{SessionId: t.session, MessageId: "m1", Prompt: canary})(ctx)
	}},
	{method: "TurnService.GetTurn", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.GetTurn, &apiv1.GetTurnRequest{TurnId: t.turn})(ctx)
	}},
	{method: "TurnService.ListTurns", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.ListTurns, &apiv1.ListTurnsRequest{SessionId: t.session})(ctx)
	}},
	{method: "TurnService.Explain", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.Explain, &apiv1.ExplainRequest{Id: t.waiting})(ctx)
	}},
	{method: "TurnService.ListUnknown", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Turns.ListUnknown, &apiv1.ListUnknownRequest{IncludeResolved: true})(ctx)
	}},
	{method: "TurnService.ResolveUnknown", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.ResolveUnknown, &apiv1.ResolveUnknownRequest{ActionId: t.unknown, Resolution: "happened", Note: canary})(ctx)
	}},
	{method: "EventService.ListEvents", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Events.ListEvents, &apiv1.ListEventsRequest{SessionId: t.session})(ctx)
	}},
	{method: "EventService.WatchEvents", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Events.WatchEvents(ctx, &apiv1.WatchEventsRequest{SessionId: t.session})
		if err != nil {
			return nil, err
		}
		defer stream.Close()
		if !stream.Receive() {
			return nil, stream.Err()
		}
		return stream.Msg(), nil
	}},
	{method: "EventService.VerifyEvents", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Events.VerifyEvents, &apiv1.VerifyEventsRequest{SessionId: t.session})(ctx)
	}},
	{method: "LedgerService.GetLedger", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Ledger.GetLedger, &apiv1.GetLedgerRequest{})(ctx)
	}},
	{method: "LedgerService.ExportLedger", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		var file bytes.Buffer
		err := c.ExportLedger(ctx, t.session, &file)
		return &apiv1.ExportLedgerResponse{Chunk: file.Bytes()}, err
	}},
	{method: "ApprovalService.ListApprovals", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Approvals.ListApprovals, &apiv1.ListApprovalsRequest{IncludeDecided: true})(ctx)
	}},
	{method: "ApprovalService.GetApproval", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Approvals.GetApproval, &apiv1.GetApprovalRequest{ApprovalId: t.approval})(ctx)
	}},
	{method: "ApprovalService.DecideApproval", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Approvals.DecideApproval, &apiv1.DecideApprovalRequest{ApprovalId: t.approval, Digest: t.approvalDigest, Reason: canary})(ctx)
	}},
	{method: "ArtifactService.GetArtifact", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		var content bytes.Buffer
		err := c.GetArtifact(ctx, t.artifact, &content)
		return &apiv1.GetArtifactResponse{Chunk: content.Bytes()}, err
	}},
	{method: "ArtifactService.PutArtifact", own: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		// Naming a digest without its content gives nobody a row of it.
		stream, err := c.Artifacts.PutArtifact(ctx)
		if err != nil {
			return nil, err
		}
		err = stream.Send(&apiv1.PutArtifactRequest{Digest: t.artifact, Size: int64(len(canary)), Kind: "workspace"})
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if _, err := stream.CloseAndReceive(); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			return nil, fmt.Errorf("an upload without content: %w", err)
		}
		return &apiv1.PutArtifactResponse{Digest: canary}, nil
	}},
	{method: "AgentService.ApplyAgent", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Agents.ApplyAgent, &apiv1.ApplyAgentRequest{Filename: canary, Source: clerk, DryRun: true})(ctx)
	}},
	{method: "AgentService.ListAgents", own: true, ours: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Agents.ListAgents, &apiv1.ListAgentsRequest{})(ctx)
	}},
	{method: "AgentService.GetAgent", ours: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Agents.GetAgent, &apiv1.GetAgentRequest{Name: t.agent, Digest: t.agentDigest})(ctx)
	}},
	{method: "AgentService.RecreateInstance", ours: true, deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Agents.RecreateInstance, &apiv1.RecreateInstanceRequest{Agent: t.agent})(ctx)
	}},
	{method: "AgentService.EffectiveTools", ours: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Agents.EffectiveTools, &apiv1.EffectiveToolsRequest{Agent: t.agent})(ctx)
	}},
	{method: "AgentService.McpTools", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Agents.McpTools, &apiv1.McpToolsRequest{Destination: "tickets"})(ctx)
	}},
	{method: "PrincipalService.AddPrincipal", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Principals.AddPrincipal, &apiv1.AddPrincipalRequest{Name: "newcomer"})(ctx)
	}},
	{method: "PrincipalService.ListPrincipals", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Principals.ListPrincipals, &apiv1.ListPrincipalsRequest{})(ctx)
	}},
	{method: "PrincipalService.ListQuotas", own: true, empty: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Principals.ListQuotas, &apiv1.ListQuotasRequest{})(ctx)
	}},
	{method: "PrincipalService.WhoAmI", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Principals.WhoAmI, &apiv1.WhoAmIRequest{})(ctx)
	}},
	{method: "RunnerAdminService.CreateJoinCode", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Runners.CreateJoinCode, &apiv1.CreateJoinCodeRequest{Name: canary + "-2"})(ctx)
	}},
	{method: "RunnerAdminService.ListRunners", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Runners.ListRunners, &apiv1.ListRunnersRequest{})(ctx)
	}},
	{method: "RunnerAdminService.ListCleanups", own: true, ours: true, empty: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Runners.ListCleanups, &apiv1.ListCleanupsRequest{})(ctx)
	}},
	{method: "RunnerAdminService.PutBinding", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Runners.PutBinding, &apiv1.PutBindingRequest{RunnerId: t.runner, PrincipalId: t.principal, Actions: []string{"files.read"}})(ctx)
	}},
	{method: "GrantService.CreateGrant", ours: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Grants.CreateGrant, &apiv1.CreateGrantRequest{Agent: t.agent})(ctx)
	}},
	{method: "GrantService.ListGrants", own: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Grants.ListGrants, &apiv1.ListGrantsRequest{IncludeRevoked: true})(ctx)
	}},
	{method: "GrantService.GetGrant", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Grants.GetGrant, &apiv1.GetGrantRequest{GrantId: t.grant})(ctx)
	}},
	{method: "CredentialService.GetSealRecipient", own: true, ours: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Credentials.GetSealRecipient, &apiv1.GetSealRecipientRequest{})(ctx)
	}},
	{method: "CredentialService.PutCredential", own: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Credentials.PutCredential, &apiv1.PutCredentialRequest{Name: "other", Sealed: []byte("x")})(ctx)
	}},
	{method: "CredentialService.ListCredentials", own: true, ours: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Credentials.ListCredentials, &apiv1.ListCredentialsRequest{})(ctx)
	}},
	{method: "OperationsService.Diagnose", own: true, operators: true, call: func(ctx context.Context, c *client.Client, _ things) (proto.Message, error) {
		return do(c.Operations.Diagnose, &apiv1.DiagnoseRequest{})(ctx)
	}},

	// What ends things comes last for their owner.
	{method: "RunnerAdminService.DeleteBinding", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Runners.DeleteBinding, &apiv1.DeleteBindingRequest{BindingId: t.binding})(ctx)
	}},
	{method: "RunnerAdminService.RevokeRunner", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Runners.RevokeRunner, &apiv1.RevokeRunnerRequest{RunnerId: t.runner})(ctx)
	}},
	{method: "CredentialService.DeleteCredential", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Credentials.DeleteCredential, &apiv1.DeleteCredentialRequest{Name: t.credential})(ctx)
	}},
	{method: "TurnService.CancelTurn", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Turns.CancelTurn, &apiv1.CancelTurnRequest{TurnId: t.waiting})(ctx)
	}},
	{method: "GrantService.RotateGrant", call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Grants.RotateGrant, &apiv1.RotateGrantRequest{GrantId: t.grant})(ctx)
	}},
	{method: "GrantService.RevokeGrant", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Grants.RevokeGrant, &apiv1.RevokeGrantRequest{GrantId: t.grant, Reason: canary})(ctx)
	}},
	{method: "SessionService.EraseSession", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Sessions.EraseSession, &apiv1.EraseSessionRequest{SessionId: t.session})(ctx)
	}},
	{method: "SessionService.CloseSession", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Sessions.CloseSession, &apiv1.CloseSessionRequest{SessionId: t.session})(ctx)
	}},
	{method: "PrincipalService.DisablePrincipal", deletes: true, call: func(ctx context.Context, c *client.Client, t things) (proto.Message, error) {
		return do(c.Principals.DisablePrincipal, &apiv1.DisablePrincipalRequest{PrincipalId: t.principal})(ctx)
	}},
}

func TestEveryMethodHasACrossing(t *testing.T) {
	checkTotal(t, apiv1.File_bivouac_v1_api_proto.Services(), func(yield func(string) bool) {
		for _, c := range crossings {
			if !yield(c.method) {
				return
			}
		}
	})
}

// checkTotal holds a table of methods against the contract.
func checkTotal(t *testing.T, services protoreflect.ServiceDescriptors, table func(func(string) bool)) {
	t.Helper()
	have := map[string]int{}
	for m := range table {
		have[m]++
	}
	for i := range services.Len() {
		s := services.Get(i)
		for j := range s.Methods().Len() {
			name := string(s.Name()) + "." + string(s.Methods().Get(j).Name())
			if have[name] != 1 {
				t.Errorf("%s has %d rows", name, have[name])
			}
			delete(have, name)
		}
	}
	for name := range have {
		t.Errorf("%s is no method", name)
	}
}

// INV-9: another tenant's admin gets for the owner's things exactly what it gets
// for things that are not there; so does another principal of the same tenant
// where things are private; and the owner gets them.
func TestTwoTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		operator := w.as(w.token)
		owner, p := w.add(operator, "home", "owner", true)
		mine := w.possess(owner, p.GetId())
		w.add(owner, "", "deputy", true) // the last admin of a tenant could not be disabled
		foreign, _ := w.add(operator, "away", "mallory", true)
		neighbour, _ := w.add(owner, "", "neighbour", false)
		for _, c := range crossings {
			w.cross(c, "another tenant's admin", foreign, mine)
			if !c.ours {
				w.cross(c, "a neighbour", neighbour, mine)
			}
		}
		rows := slices.Clone(crossings)
		slices.SortStableFunc(rows, func(a, b crossing) int { return btoi(a.deletes) - btoi(b.deletes) })
		for _, c := range rows {
			res, err := c.call(t.Context(), owner, mine)
			if c.operators {
				if protocol.CodeOf(err) != protocol.CodePermissionDenied {
					t.Errorf("%s: an admin of one tenant: %v, %v", c.method, res, err)
				}
				if _, err := c.call(t.Context(), operator, mine); err != nil {
					t.Errorf("%s: the operator is refused: %v", c.method, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: the owner is refused: %v", c.method, err)
			}
			if c.own && !c.deletes && !c.empty && strings.HasPrefix(c.method[strings.Index(c.method, ".")+1:], "List") && !leaks(res, mine) {
				t.Errorf("%s: the owner's list lacks the owner's things: %v", c.method, res)
			}
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// cross calls a method about another's things.
func (w *world) cross(c crossing, who string, as *client.Client, mine things) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	res, err := c.call(ctx, as, mine)
	if c.own {
		if err != nil && protocol.CodeOf(err) != protocol.CodePermissionDenied {
			w.t.Errorf("%s by %s in its own world: %v", c.method, who, err)
		}
		if res != nil && strings.Contains(c.method, ".List") && leaks(res, mine) {
			w.t.Errorf("%s shows %s what is another's: %v", c.method, who, res)
		}
		return
	}
	_, none := c.call(ctx, as, absent(mine))
	if err == nil || none == nil {
		w.t.Errorf("%s answered %s: %v, %v", c.method, who, err, none)
		return
	}
	if got, want := blind(err, mine), blind(none, absent(mine)); got != want {
		w.t.Errorf("%s tells %s that it exists:\n  another's: %s\n  absent:    %s", c.method, who, got, want)
	}
	if code := protocol.CodeOf(err); code != protocol.CodeNotFound && code != protocol.CodePermissionDenied {
		w.t.Errorf("%s by %s: %v", c.method, who, err)
	}
}

// values of every kind of thing.
func (t things) values() []string {
	return []string{t.session, t.turn, t.waiting, t.unknownTurn, t.approval, t.unknown, t.artifact, t.agent, t.runner, t.binding, t.grant, t.credential, t.principal}
}

// blind is an error with the ids that its caller sent taken out.
func blind(err error, t things) string {
	text := string(protocol.CodeOf(err)) + ": " + err.Error()
	for _, v := range t.values() {
		text = strings.ReplaceAll(text, v, "…")
	}
	return text
}

// leaks reports something of t in an answer.
func leaks(m proto.Message, t things) bool {
	text := prototext.Format(m)
	for _, v := range append(t.values(), canary) {
		if v != "" && strings.Contains(text, v) {
			return true
		}
	}
	return false
}
