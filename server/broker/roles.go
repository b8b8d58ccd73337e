package broker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/intercept"
)

var (
	serversOnly = []identity.Role{identity.RoleServer}
	holders     = []identity.Role{identity.RoleServer, identity.RoleRunner}
	strangers   = []identity.Role{identity.RoleNone, identity.RoleServer}
)

// mayCall is the whole of who may call what. A procedure without a row is
// refused; a test holds the table against the contract.
var mayCall = map[string][]identity.Role{
	brokerv1connect.BrokerServiceDescribeProcedure:     serversOnly,
	brokerv1connect.BrokerServiceCallModelProcedure:    holders,
	brokerv1connect.BrokerServiceInvokeProcedure:       serversOnly,
	brokerv1connect.BrokerServiceLookupActionProcedure: serversOnly,
	brokerv1connect.BrokerServiceUsageProcedure:        serversOnly,
	brokerv1connect.BrokerServiceProbeProcedure:        serversOnly,
	brokerv1connect.BrokerServiceReachProcedure:        serversOnly,
	brokerv1connect.BrokerServiceMcpToolsProcedure:     serversOnly,
	brokerv1connect.BrokerServiceDiagnoseProcedure:     serversOnly,

	brokerv1connect.AuthorityServiceCreateGrantProcedure:      serversOnly,
	brokerv1connect.AuthorityServiceListGrantsProcedure:       serversOnly,
	brokerv1connect.AuthorityServiceRevokeGrantProcedure:      serversOnly,
	brokerv1connect.AuthorityServiceRotateGrantProcedure:      serversOnly,
	brokerv1connect.AuthorityServiceSettleRotationProcedure:   serversOnly,
	brokerv1connect.AuthorityServicePutCredentialProcedure:    serversOnly,
	brokerv1connect.AuthorityServiceListCredentialsProcedure:  serversOnly,
	brokerv1connect.AuthorityServiceDeleteCredentialProcedure: serversOnly,

	brokerv1connect.TrustServiceEnrollServerProcedure: strangers,
	// A server whose certificate ended while it was off shows its enrolled key.
	brokerv1connect.TrustServiceRenewServerProcedure:       strangers,
	brokerv1connect.TrustServiceCertifySigningKeyProcedure: serversOnly,
	brokerv1connect.TrustServiceCertifyRunnerProcedure:     serversOnly,
	brokerv1connect.TrustServiceSignReceiptProcedure:       serversOnly,
	brokerv1connect.TrustServiceLastHeadProcedure:          serversOnly,
	brokerv1connect.TrustServiceSignHeadProcedure:          serversOnly,
}

// checkRole refuses callers whose role has no place in the table.
func checkRole(ctx context.Context, procedure string) error {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return err
	}
	intercept.Annotate(ctx, slog.String("peer", peer.ID), slog.String("role", string(peer.Role)))
	if slices.Contains(mayCall[procedure], peer.Role) {
		return nil
	}
	if peer.Role == identity.RoleNone {
		return protocol.Errorf(protocol.CodeUnauthenticated, "%s needs a certificate of this deployment: enrol first", procedure)
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "%s is not for a %s", procedure, peer.Role)
}

// peerOf a request that the gate let in.
func peerOf(ctx context.Context) identity.Peer {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		panic(fmt.Sprintf("broker: a handler ran without the gate: %v", err))
	}
	return peer
}
