package api

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/apiv1/apiv1connect"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	"bivouac/server/intercept"
	"bivouac/server/store"
	"bivouac/server/transfer"
)

// Broker is what the API relays to the broker: ciphertext and names.
type Broker interface {
	Describe(ctx context.Context) (*brokerv1.DescribeResponse, error)
	PutCredential(ctx context.Context, tenant protocol.TenantID, name string, sealed []byte) error
	Credentials(ctx context.Context, tenant protocol.TenantID) ([]*brokerv1.Credential, error)
	DeleteCredential(ctx context.Context, tenant protocol.TenantID, name string) error
	McpTools(ctx context.Context, req *brokerv1.McpToolsRequest) (*brokerv1.McpToolsResponse, error)
}

// Config of the public API. Engine, Store, Blobs, Broker and Root are required.
type Config struct {
	Engine *engine.Engine
	// Store is read here; what changes it is the engine's to decide.
	Store  *store.Store
	Blobs  transfer.Blobs
	Broker Broker
	// Root that logins and join codes pin.
	Root func() (*x509.Certificate, error)
	// RunnerAddress is where runners reach this server, host:port.
	RunnerAddress string
	// BrokerAddress is where their relays are told that the broker is, host:port.
	BrokerAddress string
	Version       string
	// MaxBlobBytes bounds one artifact. Default transfer.MaxBytes.
	MaxBlobBytes int64
	// UnaryTimeout bounds a call that is no stream. Default intercept.UnaryTimeout.
	UnaryTimeout time.Duration
	// ExamineFunc looks at what the server stands on; required.
	ExamineFunc func(ctx context.Context) *finding.Report
	// TenantsFunc looks whether there are these tenants, and nothing else; required.
	TenantsFunc func(ctx context.Context, named []*brokerv1.NamedTenant) *finding.Report
	// Stopping is closed when the server begins to stop: streams end then.
	Stopping <-chan struct{}
	// DeliveredFunc is told how old an event was when a reader that had seen all
	// before it got it; nil: nobody is.
	DeliveredFunc func(age time.Duration)
	Log           *slog.Logger
}

// Handler serves every service of the contract.
func Handler(c Config) http.Handler {
	c.MaxBlobBytes = cmp.Or(c.MaxBlobBytes, transfer.MaxBytes)
	c.UnaryTimeout = cmp.Or(c.UnaryTimeout, intercept.UnaryTimeout)
	if c.DeliveredFunc == nil {
		c.DeliveredFunc = func(time.Duration) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	opts := append(intercept.Options(c.UnaryTimeout, intercept.Guard(authenticator{c.Store}.admit)), connect.WithCodec(jsonBodies{}))
	mount := func(path string, h http.Handler) { mux.Handle(path, h) }
	mount(apiv1connect.NewSessionServiceHandler(sessions{c}, opts...))
	mount(apiv1connect.NewTurnServiceHandler(turns{c}, opts...))
	mount(apiv1connect.NewEventServiceHandler(events{c}, opts...))
	mount(apiv1connect.NewApprovalServiceHandler(approvals{c}, opts...))
	mount(apiv1connect.NewArtifactServiceHandler(artifacts{c}, opts...))
	mount(apiv1connect.NewAgentServiceHandler(agents{c}, opts...))
	mount(apiv1connect.NewPrincipalServiceHandler(principals{c}, opts...))
	mount(apiv1connect.NewRunnerAdminServiceHandler(runners{c}, opts...))
	mount(apiv1connect.NewGrantServiceHandler(grants{c}, opts...))
	mount(apiv1connect.NewCredentialServiceHandler(credentials{c}, opts...))
	mount(apiv1connect.NewOperationsServiceHandler(operations{c}, opts...))
	mount(apiv1connect.NewLedgerServiceHandler(ledgers{c}, opts...))
	return intercept.Handler(c.Log, methodsOnly(curlJSON(mux)))
}

// Methods of the contract, sorted by their place in it.
func Methods() (all []string) {
	services := apiv1.File_bivouac_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			all = append(all, string(services.Get(i).Methods().Get(j).Name()))
		}
	}
	return all
}

// methodsOnly answers a path that is no method of the contract in the API's own
// form.
func methodsOnly(next http.Handler) http.Handler {
	methods := map[string]bool{}
	services := apiv1.File_bivouac_v1_api_proto.Services()
	for i := range services.Len() {
		s := services.Get(i)
		for j := range s.Methods().Len() {
			methods["/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name())] = true
		}
	}
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if methods[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		err := protocol.Errorf(protocol.CodeNotFound,
			"%s is no method of this API: methods look like /bivouac.v1.PrincipalService/WhoAmI, with POST", r.URL.Path)
		r.Header.Set("Content-Type", "application/json")
		_ = refuse.Write(w, r, protocol.ToConnect(err)) // the client went
	})
}

// curlJSON reads the content type that curl -d sends by itself as JSON. A
// browser form could send it too, but no browser adds a bearer token.
func curlJSON(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.Header.Get("Content-Type") == "application/x-www-form-urlencoded" {
			r.Header.Set("Content-Type", "application/json")
		}
		next.ServeHTTP(w, r)
	})
}
