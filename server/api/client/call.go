package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1/apiv1connect"
)

// longestRetryAfter is the longest wait that a call makes on its own; a server
// that asks for more is a matter for the person.
const longestRetryAfter = 2 * time.Second

// idempotent says of every unary procedure whether the same request may be sent
// again when it is not known whether the first one arrived. A test holds it
// against the services' descriptors.
var idempotent = map[string]bool{
	apiv1connect.SessionServiceCreateSessionProcedure:       true, // by idempotency_key
	apiv1connect.SessionServiceGetSessionProcedure:          true,
	apiv1connect.SessionServiceListSessionsProcedure:        true,
	apiv1connect.SessionServiceCloseSessionProcedure:        true,
	apiv1connect.SessionServiceEraseSessionProcedure:        true,
	apiv1connect.TurnServiceSubmitTurnProcedure:             true, // by message_id, INV-15
	apiv1connect.TurnServiceGetTurnProcedure:                true,
	apiv1connect.TurnServiceListTurnsProcedure:              true,
	apiv1connect.TurnServiceCancelTurnProcedure:             true,
	apiv1connect.TurnServiceExplainProcedure:                true,
	apiv1connect.TurnServiceListUnknownProcedure:            true,
	apiv1connect.TurnServiceResolveUnknownProcedure:         false,
	apiv1connect.EventServiceListEventsProcedure:            true,
	apiv1connect.EventServiceVerifyEventsProcedure:          true,
	apiv1connect.ApprovalServiceListApprovalsProcedure:      true,
	apiv1connect.ApprovalServiceGetApprovalProcedure:        true,
	apiv1connect.ApprovalServiceDecideApprovalProcedure:     false,
	apiv1connect.AgentServiceApplyAgentProcedure:            true, // by digest
	apiv1connect.AgentServiceListAgentsProcedure:            true,
	apiv1connect.AgentServiceGetAgentProcedure:              true,
	apiv1connect.AgentServiceRecreateInstanceProcedure:      false,
	apiv1connect.AgentServiceEffectiveToolsProcedure:        true,
	apiv1connect.AgentServiceMcpToolsProcedure:              true,
	apiv1connect.PrincipalServiceAddPrincipalProcedure:      false, // the token is in one answer
	apiv1connect.PrincipalServiceListPrincipalsProcedure:    true,
	apiv1connect.PrincipalServiceDisablePrincipalProcedure:  true,
	apiv1connect.PrincipalServiceWhoAmIProcedure:            true,
	apiv1connect.PrincipalServiceListQuotasProcedure:        true,
	apiv1connect.RunnerAdminServiceCreateJoinCodeProcedure:  false, // the code is in one answer
	apiv1connect.RunnerAdminServiceListRunnersProcedure:     true,
	apiv1connect.RunnerAdminServiceListCleanupsProcedure:    true,
	apiv1connect.OperationsServiceDiagnoseProcedure:         true,
	apiv1connect.LedgerServiceGetLedgerProcedure:            true,
	apiv1connect.RunnerAdminServiceRevokeRunnerProcedure:    true,
	apiv1connect.RunnerAdminServicePutBindingProcedure:      true,
	apiv1connect.RunnerAdminServiceDeleteBindingProcedure:   false,
	apiv1connect.GrantServiceCreateGrantProcedure:           false,
	apiv1connect.GrantServiceListGrantsProcedure:            true,
	apiv1connect.GrantServiceGetGrantProcedure:              true,
	apiv1connect.GrantServiceRevokeGrantProcedure:           true,
	apiv1connect.GrantServiceRotateGrantProcedure:           false, // each time is another renewal
	apiv1connect.CredentialServiceGetSealRecipientProcedure: true,
	apiv1connect.CredentialServicePutCredentialProcedure:    true,
	apiv1connect.CredentialServiceListCredentialsProcedure:  true,
	apiv1connect.CredentialServiceDeleteCredentialProcedure: false,
}

// caller adds the token, retries, and turns errors into ours.
type caller struct {
	token   string
	base    string
	retries int
}

func (c caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if c.token != "" {
			req.Header().Set("Authorization", "Bearer "+c.token)
		}
		if m, ok := req.Any().(proto.Message); ok {
			if err := sendable(m); err != nil {
				return nil, err
			}
		}
		for try := 0; ; try++ {
			res, err := next(ctx, req)
			if err == nil {
				return res, nil
			}
			err = c.coded(err)
			wait, again := retryIn(req.Spec().Procedure, err, try)
			if !again || try >= c.retries {
				return nil, err
			}
			if !op.Sleep(ctx, wait) {
				return nil, err
			}
		}
	}
}

func (c caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if c.token != "" {
			conn.RequestHeader().Set("Authorization", "Bearer "+c.token)
		}
		return codedConn{conn, c}
	}
}

func (c caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// sendable refuses here what cannot be sent: Connect would let it arrive as an
// empty request.
func sendable(m proto.Message) error {
	if n := proto.Size(m); n > maxMessageBytes {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the request has %d bytes: at most %d", n, maxMessageBytes)
	}
	if _, err := proto.Marshal(m); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the request cannot be written, so nothing was sent: every text must be valid UTF-8")
	}
	return nil
}

// retryIn says whether a call may be repeated, and after how long: what the
// server asked for, or a back-off with full jitter.
func retryIn(procedure string, err error, try int) (time.Duration, bool) {
	var e *protocol.Error
	if !errors.As(err, &e) || !idempotent[procedure] || silent(err) {
		return 0, false
	}
	if !e.Code.Retryable() && e.Code != protocol.CodeOutcomeUnknown { // committed or not: the same call again says which
		return 0, false
	}
	if e.RetryAfter > 0 {
		return e.RetryAfter, e.RetryAfter <= longestRetryAfter
	}
	return backoff(try), true
}

// backoff has full jitter: two clients that failed together come back apart.
func backoff(try int) time.Duration {
	limit := min(50*time.Millisecond<<min(try, 6), longestRetryAfter)
	return rand.N(limit) + time.Millisecond
}

// coded makes every error a *protocol.Error with a text for people.
func (c caller) coded(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return protocol.FromConnect(err)
	}
	out := protocol.FromConnect(err)
	var e *protocol.Error
	if !errors.As(out, &e) {
		return out
	}
	switch {
	case connect.IsWireError(ce):
		// The server's own words; a refused size has no code of ours.
		if ce.Code() == connect.CodeResourceExhausted && ce.Meta().Get("Bivouac-Code") == "" {
			e.Code = protocol.CodeInvalidArgument
		}
		// The remedy is whole: a server does not know by which address it is called.
		e.Message = strings.ReplaceAll(e.Message, "bivouac login URL", "bivouac login "+c.base)
	case ce.Code() == connect.CodeResourceExhausted:
		e.Code = protocol.CodeInvalidArgument
	case errors.Is(err, io.ErrUnexpectedEOF), ce.Code() == connect.CodeInternal, ce.Code() == connect.CodeUnknown,
		ce.Code() == connect.CodeCanceled && e.Code == protocol.CodeUnavailable:
		// The connection broke in the middle: nothing that the server said.
		e.Code = protocol.CodeUnavailable
		e.Message = "the connection to " + c.base + " broke (" + ce.Message() + "); ask again"
	case ce.Code() == connect.CodeUnavailable, neverSent(err):
		e.Code, e.Message = c.unreachable(err, ce.Message())
	}
	return e
}

// codedConn is a stream whose errors are ours.
type codedConn struct {
	connect.StreamingClientConn
	c caller
}

func (s codedConn) Send(m any) error     { return s.c.coded(s.StreamingClientConn.Send(m)) }
func (s codedConn) Receive(m any) error  { return s.c.coded(s.StreamingClientConn.Receive(m)) }
func (s codedConn) CloseRequest() error  { return s.c.coded(s.StreamingClientConn.CloseRequest()) }
func (s codedConn) CloseResponse() error { return s.c.coded(s.StreamingClientConn.CloseResponse()) }
