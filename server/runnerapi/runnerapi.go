package runnerapi

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/engine"
	"bivouac/server/intercept"
	"bivouac/server/store"
	"bivouac/server/transfer"
)

// Trust is the root's side: it alone makes certificates.
type Trust interface {
	Root() (*x509.Certificate, error)
	CertifyRunner(ctx context.Context, runner protocol.RunnerID, tenant protocol.TenantID, spki []byte) (chain, root []byte, err error)
}

// Workloads judges the identities of another scheduler's tasks: it names the workload,
// whose machine it is and what for, and nothing of the key. It is told what became of it.
type Workloads interface {
	Judge(ctx context.Context, token string) (w engine.WorkloadEnrolment, became func(error), err error)
}

// Config of the listener's handlers. All fields but the last five are required.
type Config struct {
	Engine *engine.Engine
	Store  *store.Store
	Blobs  transfer.Blobs
	Trust  Trust
	Feed   *Feed
	// BrokerAddress is where runners' relays reach the broker, host:port.
	BrokerAddress string
	// Workloads by whose identities machines enrol too; nil: by codes alone.
	Workloads Workloads
	// MaxBlobBytes bounds one blob. Default transfer.MaxBytes.
	MaxBlobBytes int64
	// UnaryTimeout bounds a call that is no stream. Default intercept.UnaryTimeout.
	UnaryTimeout time.Duration
	// Stopping is closed when the server begins to stop: streams end then.
	Stopping <-chan struct{}
	Log      *slog.Logger
}

// Handler serves runners and brokers. It must stand behind link.Server, which
// proves who calls.
func Handler(c Config) http.Handler {
	c.MaxBlobBytes = cmp.Or(c.MaxBlobBytes, transfer.MaxBytes)
	c.UnaryTimeout = cmp.Or(c.UnaryTimeout, intercept.UnaryTimeout)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	opts := intercept.Options(c.UnaryTimeout, intercept.Guard(gate{c.Store}.admit))
	mux.Handle(runnerv1connect.NewRunnerServiceHandler(runners{c, identity.NewChallenges(challengeTTL)}, opts...))
	mux.Handle(brokerv1connect.NewFeedServiceHandler(feeds{c}, opts...))
	return intercept.Handler(c.Log, withTransport(mux))
}

// Methods that this listener answers.
func Methods() (all []string) {
	for _, s := range []protoreflect.ServiceDescriptor{
		runnerv1.File_bivouac_runner_v1_runner_proto.Services().ByName("RunnerService"),
		brokerv1.File_bivouac_broker_v1_broker_proto.Services().ByName("FeedService"),
	} {
		for i := range s.Methods().Len() {
			all = append(all, string(s.Methods().Get(i).Name()))
		}
	}
	return all
}

type transportKey struct{}

// withTransport remembers by which transport a request came, for status and
// explain.
func withTransport(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "http/2"
		if r.ProtoMajor == 3 {
			name = "http/3"
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), transportKey{}, name)))
	})
}

func transportOf(ctx context.Context) string {
	name, _ := ctx.Value(transportKey{}).(string)
	return name
}

func stopping() error {
	return protocol.Errorf(protocol.CodeUnavailable, "the server is stopping; connect again with the last cursor")
}
