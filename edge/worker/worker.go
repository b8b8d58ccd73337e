package worker

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/runtime/runtimev1/runtimev1connect"
)

// Adapter carries out one spec.
type Adapter func(ctx context.Context, h *Host, s *runtimev1.Spec) (*runtimev1.Outcome, *runtimev1.LoopState, error)

// adapters by the names that a runner advertises: protocol.Adapters.
var adapters = map[string]Adapter{
	protocol.AdapterNative:   native,
	protocol.AdapterScripted: scripted,
}

// Adapters are the names of all adapters of this build, sorted.
func Adapters() []string { return slices.Sorted(maps.Keys(adapters)) }

// Run works on conn until the attempt's loop has finished.
func Run(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	cc, err := overHTTP2(ctx, conn)
	if err != nil {
		return protocol.Errorf(protocol.CodeInternal, "the worker's channel does not speak HTTP/2: %w", err)
	}
	defer cc.Close()
	h := &Host{client: runtimev1connect.NewHostServiceClient(&http.Client{Transport: cc}, "http://supervisor",
		connect.WithAcceptCompression("gzip", nil, nil), connect.WithReadMaxBytes(maxMessage))}
	return run(ctx, h)
}

// overHTTP2 is the one connection as a client that never dials another.
func overHTTP2(ctx context.Context, conn net.Conn) (*http.ClientConn, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocols:          protocols,
		DisableCompression: true,
	}
	return t.NewClientConn(ctx, "http", "supervisor:80")
}

// maxMessage bounds one message from the supervisor: a spec with its
// conversation is the largest.
const maxMessage = 64 << 20

func run(ctx context.Context, h *Host) error {
	spec, err := h.spec(ctx)
	if err != nil {
		return err
	}
	adapter, known := adapters[spec.Adapter]
	if !known {
		return h.finish(ctx, &runtimev1.Outcome{
			Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: string(protocol.CodeIncompatible),
			Message: "This worker has no adapter " + spec.Adapter + ".",
		}, nil)
	}
	outcome, state, err := adapter(ctx, h, spec)
	if err != nil {
		return err
	}
	return h.finish(ctx, outcome, state)
}
