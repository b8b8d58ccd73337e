package server

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"

	"bivouac/consul/settings"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/server/engine"
)

// file is server.hcl. Every attribute is optional; what is absent keeps its
// default.
//
//	data_dir = "/var/lib/bivouac/server"
//	grace    = "3s"
//	public  { address = "127.0.0.1:7400"  tls_cert = "…"  tls_key = "…" }
//	runners { address = "0.0.0.0:7401"    advertise = "bivouac.example.org:7401" }
//	broker  { address = "10.0.0.7:7402"   advertise = "…"  code_file = "…" }
//	database = "host=db.example.org dbname=bivouac user=bivouac passfile=/etc/bivouac/pgpass"
//	store   { dsn_file = "/etc/bivouac/dsn"  max_connections = 16 }
//	blobs   { dir = "/srv/bivouac/blobs" }
//	trace   { endpoint = "http://127.0.0.1:4318" }
//	metrics { address = "127.0.0.1:7409" }
//	limits  { max_blob_bytes = 536870912  max_queued_tenant = 1000  max_queued_principal = 100
//	          max_session_idle = "24h"  max_session_lifetime = "720h"  max_approval_wait = "1h"
//	          allocation_ttl = "5m" }
//	quota "principal" { max_active_turns = 4  max_turns_per_minute = 30 }
//	nomad   { address = "https://nomad.example.org:4646"  enrol "agents" { … } }   see package jobs
//	consul  { address = "127.0.0.1:8500"  token_file = "consul.token"  service { … }  mesh { … } }   see package consul/settings
type file struct {
	DataDir  *string      `hcl:"data_dir"`
	Grace    *string      `hcl:"grace"`
	Database *string      `hcl:"database"`
	Public   *publicFile  `hcl:"public,block"`
	Runners  *runnersFile `hcl:"runners,block"`
	Broker   *brokerFile  `hcl:"broker,block"`
	Store    *storeFile   `hcl:"store,block"`
	Blobs    *blobsFile   `hcl:"blobs,block"`
	Metrics  *metricsFile `hcl:"metrics,block"`
	Trace    *traceFile   `hcl:"trace,block"`
	Limits   *limitsFile  `hcl:"limits,block"`
	Quotas   []*quotaFile `hcl:"quota,block"`
	Nomad    *jobs.Block  `hcl:"nomad,block"`
	Consul   *consulFile  `hcl:"consul,block"`
}

// consulFile is read by package settings.
type consulFile struct {
	Body hcl.Body `hcl:",remain"`
}

type publicFile struct {
	Address *string `hcl:"address"`
	TLSCert *string `hcl:"tls_cert"`
	TLSKey  *string `hcl:"tls_key"`
}

type runnersFile struct {
	Address   *string `hcl:"address"`
	Advertise *string `hcl:"advertise"`
}

type brokerFile struct {
	Address   *string `hcl:"address"`
	Advertise *string `hcl:"advertise"`
	CodeFile  *string `hcl:"code_file"`
}

type storeFile struct {
	DSNFile        *string `hcl:"dsn_file"`
	MaxConnections *int    `hcl:"max_connections"`
}

type blobsFile struct {
	Dir *string `hcl:"dir"`
}

type traceFile struct {
	Endpoint *string `hcl:"endpoint"`
}

type metricsFile struct {
	Address *string `hcl:"address"`
}

type limitsFile struct {
	MaxBlobBytes       *int64 `hcl:"max_blob_bytes"`
	MaxQueuedTenant    *int   `hcl:"max_queued_tenant"`
	MaxQueuedPrincipal *int   `hcl:"max_queued_principal"`
	// These narrow what agents allow; absent: the agent's own.
	MaxSessionIdle     *string `hcl:"max_session_idle"`
	MaxSessionLifetime *string `hcl:"max_session_lifetime"`
	MaxApprovalWait    *string `hcl:"max_approval_wait"`
	// AllocationTTL is how long a turn waits for the allocation that it was promised.
	AllocationTTL *string `hcl:"allocation_ttl"`
}

// LoadFile reads server.hcl over c. Errors name file, line and reason, all of
// them at once.
func LoadFile(c Config, path string) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "the configuration file cannot be read: %w", err)
	}
	if err := filemode.Policy(path); err != nil {
		return c, err
	}
	parsed, diags := hclparse.NewParser().ParseHCL(src, path)
	var f file
	if !diags.HasErrors() {
		diags = gohcl.DecodeBody(parsed.Body, nil, &f)
	}
	if diags.HasErrors() {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "the configuration file is not usable:\n%w", listed(diags))
	}
	if c, err = f.over(c); err != nil || f.Consul == nil {
		return c, err
	}
	in, err := settings.Decode(settings.Server, f.Consul.Body, filepath.Dir(path), os.Getenv)
	c.Consul = &in
	return c, err
}

func listed(diags hcl.Diagnostics) error {
	var all []error
	for _, d := range diags {
		all = append(all, errors.New("  "+d.Error()))
	}
	return errors.Join(all...)
}

// over lays what the file says over c.
func (f file) over(c Config) (Config, error) {
	set(&c.DataDir, f.DataDir)
	if err := setDuration("grace", &c.Grace, f.Grace); err != nil {
		return c, err
	}
	if p := f.Public; p != nil {
		set(&c.PublicAddress, p.Address)
		set(&c.TLSCertFile, p.TLSCert)
		set(&c.TLSKeyFile, p.TLSKey)
	}
	if r := f.Runners; r != nil {
		set(&c.RunnerAddress, r.Address)
		set(&c.AdvertiseRunner, r.Advertise)
	}
	if b := f.Broker; b != nil {
		set(&c.BrokerAddress, b.Address)
		set(&c.AdvertiseBroker, b.Advertise)
		set(&c.BrokerCodeFile, b.CodeFile)
	}
	if s := f.Store; s != nil {
		set(&c.DSNFile, s.DSNFile)
		set(&c.MaxConnections, s.MaxConnections)
	}
	set(&c.Database, f.Database)
	if b := f.Blobs; b != nil {
		set(&c.BlobDir, b.Dir)
	}
	if t := f.Trace; t != nil {
		set(&c.TraceEndpoint, t.Endpoint)
	}
	if m := f.Metrics; m != nil {
		set(&c.MetricsAddress, m.Address)
	}
	if err := f.nomad(&c); err != nil {
		return c, err
	}
	var err error
	if c.Quotas, err = quotasOver(c.Quotas, f.Quotas); err != nil {
		return c, err
	}
	if l := f.Limits; l != nil {
		set(&c.MaxBlobBytes, l.MaxBlobBytes)
		set(&c.Limits.MaxQueuedTenant, l.MaxQueuedTenant)
		set(&c.Limits.MaxQueuedPrincipal, l.MaxQueuedPrincipal)
		return c, errors.Join(
			setLimit("limits.max_session_idle", &c.Limits.MaxSessionIdle, l.MaxSessionIdle),
			setLimit("limits.max_session_lifetime", &c.Limits.MaxSessionLifetime, l.MaxSessionLifetime),
			setLimit("limits.max_approval_wait", &c.Limits.MaxApprovalWait, l.MaxApprovalWait),
			setLimit("limits.allocation_ttl", &c.Limits.AllocationTTL, l.AllocationTTL))
	}
	return c, nil
}

// nomad is whose runners enrol by workload identity.
func (f file) nomad(c *Config) error {
	if f.Nomad == nil {
		return nil
	}
	n, err := f.Nomad.Config(os.Getenv)
	if err != nil {
		return err
	}
	for _, r := range n.Rules {
		if err := engine.CheckActions(r.Actions); err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "nomad.enrol %q: actions: %w", r.Name, err)
		}
	}
	c.Nomad = &n
	return nil
}

func setDuration(field string, dst *time.Duration, v *string) error {
	if v == nil {
		return nil
	}
	d, err := time.ParseDuration(*v)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, `%s: %q is no duration: write it as "3s"`, field, *v)
	}
	*dst = d
	return nil
}

// setLimit is a duration that is there to narrow: none that is too short to live
// under, and none that would mean no limit.
func setLimit(field string, dst *time.Duration, v *string) error {
	if err := setDuration(field, dst, v); err != nil || v == nil {
		return err
	}
	if *dst < time.Second {
		return protocol.Errorf(protocol.CodeInvalidArgument, `%s: %q is less than a second: leave it out for no limit of the server's`, field, *v)
	}
	return nil
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}
