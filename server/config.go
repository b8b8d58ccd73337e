package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"bivouac/consul/settings"
	"bivouac/edge/durable"
	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/trace"
	"bivouac/server/transfer"
)

// Config of a server. Start from Default.
type Config struct {
	// DataDir holds the database, blobs and the server's identity, 0700.
	DataDir string
	// Database is the DSN of a PostgreSQL database, which several servers may
	// share; empty: SQLite in DataDir. A password is no part of it: passfile= names
	// the file that has it.
	Database string
	// DSNFile names a file with such a DSN, instead of Database.
	DSNFile string
	// MaxConnections to PostgreSQL; zero: 16.
	MaxConnections int
	// BlobDir keeps artifacts; empty: "blobs" in DataDir. All servers of one
	// database share it.
	BlobDir string
	// PublicAddress of the API for people, host:port.
	PublicAddress string
	// TLSCertFile and TLSKeyFile serve the API over TLS; both or none. Without
	// them it listens on loopback only.
	TLSCertFile string
	TLSKeyFile  string
	// RunnerAddress for runners and brokers, TCP and UDP, host:port.
	RunnerAddress string
	// AdvertiseRunner is how runners reach RunnerAddress from where they are;
	// empty: RunnerAddress itself.
	AdvertiseRunner string
	// BrokerAddress of the broker's listener, host:port.
	BrokerAddress string
	// AdvertiseBroker is how runners' relays reach the broker; empty:
	// BrokerAddress.
	AdvertiseBroker string
	// BrokerCodeFile holds the code of bivouac-broker server-code; needed at the
	// first start.
	BrokerCodeFile string
	// Nomad that runs runners; nil: none does.
	Nomad *jobs.Config
	// Consul in which the server is a service; nil: it is in none.
	Consul *settings.Config
	// TraceEndpoint of a collector that speaks OTLP over HTTP, such as
	// http://127.0.0.1:4318; empty: no traces.
	TraceEndpoint string
	// MetricsAddress of the page of numbers, host:port; empty: none. It has no
	// secret and asks for none.
	MetricsAddress string
	// MaxBlobBytes bounds one workspace, patch or output.
	MaxBlobBytes int64
	// Grace is how long running calls may go on when the server stops.
	Grace time.Duration
	// Limits of the engine; zero fields mean its defaults.
	Limits engine.Limits
	// Quotas of tenants, principals and agents; the zero value has none.
	Quotas policy.Quotas
	// Version of the binary, for people.
	Version string
	// Starter is the command that starts server and broker together, for the doctor;
	// empty: each is started by itself.
	Starter string
	// Again is the command that starts this server with the flags of its last start, for
	// the doctor, where its addresses are of then; empty: they are as they were given.
	Again string
	// StartedFunc is told once that the sockets answer; nil: nobody.
	StartedFunc func()

	// PublicListener, RunnerListener and RunnerPacketConn replace the sockets
	// that the addresses name, for tests and for one process with a broker.
	PublicListener   net.Listener
	RunnerListener   net.Listener
	RunnerPacketConn net.PacketConn
	MetricsListener  net.Listener
	// TraceClient replaces the HTTP client towards the collector, for tests.
	TraceClient *http.Client
	// Network gives the sockets towards the broker.
	Network link.Network
	// Elapsed is the clock of leases; nil: the one that counts suspend. Virtual
	// time has its own.
	Elapsed lease.Elapsed
	Log     *slog.Logger
}

// together is the command that starts server and broker of this deployment.
func (c Config) together(alone string) string {
	if c.Starter != "" {
		return c.Starter
	}
	return alone
}

// Default is a server for one machine.
func Default() Config {
	return Config{
		DataDir:       defaultDataDir(),
		PublicAddress: "127.0.0.1:7400",
		RunnerAddress: "127.0.0.1:7401",
		BrokerAddress: "127.0.0.1:7402",
		MaxBlobBytes:  transfer.MaxBytes,
		Grace:         3 * time.Second,
		Version:       "dev",
	}
}

func defaultDataDir() string {
	return durable.StateDir("bivouac/server", "bivouac-server")
}

// Validate lists every problem, each with the field that it is about.
func (c Config) Validate() error {
	var bad []error
	problem := func(field, format string, args ...any) {
		bad = append(bad, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.DataDir == "" {
		problem("data_dir", "it is missing: name a directory")
	}
	for _, a := range []struct{ field, value string }{
		{"public.address", c.PublicAddress}, {"runners.address", c.RunnerAddress}, {"broker.address", c.BrokerAddress},
	} {
		if err := checkAddress(a.value); err != nil {
			problem(a.field, "%w", err)
		}
	}
	for _, a := range []struct{ field, value string }{
		{"runners.advertise", c.AdvertiseRunner}, {"broker.advertise", c.AdvertiseBroker}, {"metrics.address", c.MetricsAddress},
	} {
		if err := checkAddress(a.value); a.value != "" && err != nil {
			problem(a.field, "%w", err)
		}
	}
	if c.TraceEndpoint != "" {
		if err := trace.CheckEndpoint(c.TraceEndpoint); err != nil {
			problem("trace.endpoint", "%w", err)
		}
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		problem("public.tls_cert", "certificate and key go together: give both or none")
	}
	if c.TLSCertFile == "" && c.PublicListener == nil && !loopback(c.PublicAddress) {
		problem("public.address", "%s is not loopback and bearer tokens must not cross a network in the clear: give --tls-cert and --tls-key (or public.tls_cert and public.tls_key), or listen on 127.0.0.1. Two to begin with: %s", c.PublicAddress, finding.SelfSigned(hostOf(c.PublicAddress)))
	}
	if c.RunnerAddress != "" && c.RunnerAddress == c.PublicAddress && !strings.HasSuffix(c.RunnerAddress, ":0") {
		problem("runners.address", "%s is the public address too: they need different ports", c.RunnerAddress)
	}
	if c.Database != "" && c.DSNFile != "" {
		problem("store.dsn_file", "database names the database already: give one of the two")
	}
	if c.MaxConnections < 0 || c.MaxConnections > 0 && c.MaxConnections < 4 {
		problem("store.max_connections", "%d are too few for a server: give at least 4", c.MaxConnections)
	}
	if c.MaxBlobBytes <= 0 {
		problem("limits.max_blob_bytes", "it must be positive")
	}
	if c.Grace < 0 {
		problem("grace", "it must not be negative")
	}
	if len(bad) == 0 {
		return nil
	}
	return &protocol.Error{Code: protocol.CodeInvalidArgument, Err: errors.Join(bad...),
		Message: "the configuration is not usable:\n  " + strings.ReplaceAll(errors.Join(bad...).Error(), "\n", "\n  ")}
}

func checkAddress(a string) error {
	_, port, err := net.SplitHostPort(a) // an empty host is every interface
	if err != nil {
		return fmt.Errorf("%q is no address: write it as host:port", a)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return fmt.Errorf("%q has no usable port: write it as host:port", a)
	}
	return nil
}

// hostOf an address; empty where it is every one of the machine.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip != nil && ip.IsUnspecified() {
		return ""
	}
	return host
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // said elsewhere
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (c Config) advertisedRunner() string {
	if c.AdvertiseRunner != "" {
		return c.AdvertiseRunner
	}
	return c.RunnerAddress
}

func (c Config) advertisedBroker() string {
	if c.AdvertiseBroker != "" {
		return c.AdvertiseBroker
	}
	return c.BrokerAddress
}

// names under which this server is known, for its certificate.
func (c Config) names() []string {
	host, _, err := net.SplitHostPort(c.advertisedRunner())
	if err != nil || host == "" {
		return nil
	}
	return []string{host}
}

// code reads the enrolment code, if there is one. A file that was there at the
// first start and is gone now is no problem.
func (c Config) code() (string, error) {
	if c.BrokerCodeFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.BrokerCodeFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "broker.code_file: %w", err)
	}
	if _, err := identity.ParseCode(identity.CodeServer, string(text)); err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "broker.code_file %s: %w", c.BrokerCodeFile, err)
	}
	return strings.TrimSpace(string(text)), nil
}
