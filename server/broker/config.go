package broker

import (
	"cmp"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac/consul"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/mcp"
	"bivouac/server/broker/provider"
)

// Config is broker.hcl: what this broker may reach and spend, which no server can
// widen.
type Config struct {
	// Listen address, TCP and UDP. Default 127.0.0.1:7402.
	Listen string `hcl:"listen,optional"`
	// Pool that capabilities must name. Default "default".
	Pool string `hcl:"pool,optional"`
	// Servers are the runner listeners whose feed is followed, one at a time.
	// Default 127.0.0.1:7401.
	Servers []string `hcl:"servers,optional"`
	// Paths is the directory of service-intentions files, relative to this file. Default
	// "paths", unless Consul holds them.
	Paths string `hcl:"paths,optional"`
	// Consul holds who may reach what as intentions in Consul, instead of Paths. What may
	// stand in it is consul/intentions'.
	Consul *Consul `hcl:"consul,block"`
	// Models are the model routes, by name.
	Models []Model `hcl:"model,block"`
	// Destinations of http tools, by name.
	Destinations []Destination `hcl:"destination,block"`
	// OAuth2 says of which stored credentials the broker makes access tokens.
	OAuth2 []OAuth2 `hcl:"oauth2,block"`
	// Caps that hold whatever a server says. Without the block: every tenant, and
	// DefaultSpendUSD in any hour.
	Caps *Caps `hcl:"caps,block"`
	// Vault holds grants and credentials in Vault or OpenBao instead of the keyring. What
	// may stand in it is vaultpolicy's.
	Vault *Vault `hcl:"vault,block"`

	// Authority is how long an admitted flow outlives the feed. Default 15s.
	Authority time.Duration
	// FeedLimit is the oldest feed under which a request is admitted. Default 2s.
	FeedLimit time.Duration
	// Dir that relative file names start from.
	Dir string

	capsGiven bool // the file has a caps block
}

// DefaultSpendUSD an hour, where broker.hcl says nothing.
const DefaultSpendUSD = 10

// Model is a route to a provider.
type Model struct {
	Name string `hcl:"name,label"`
	// Format of the wire: "openai-chat" (default), "openai-responses" or "anthropic".
	Format string `hcl:"format,optional"`
	// BaseURL such as https://api.openai.com/v1 or https://api.anthropic.com/v1.
	BaseURL string `hcl:"base_url"`
	// Model as the provider names it.
	Model string `hcl:"model"`
	// Credential in the keyring, of the tenant that asks or of CredentialTenant.
	Credential       string `hcl:"credential,optional"`
	CredentialTenant string `hcl:"credential_tenant,optional"`
	// CredentialHeader that carries it, and CredentialFormat with {value} once.
	// Default: as the format's own provider wants it: Authorization with
	// "Bearer {value}", or x-api-key with "{value}" for anthropic. Either may stand
	// with every format, for gateways that want the other.
	CredentialHeader string `hcl:"credential_header,optional"`
	CredentialFormat string `hcl:"credential_format,optional"`
	// AllowPrivate admits loopback and private addresses, and http.
	AllowPrivate bool `hcl:"allow_private,optional"`
	// CAFile holds certificates (PEM) to trust instead of the machine's.
	CAFile string `hcl:"ca_file,optional"`
	// LimitField of openai-chat is "max_tokens" (default) or "max_completion_tokens".
	LimitField string `hcl:"limit_field,optional"`
	// FirstTimeout bounds the wait for an answer's beginning, IdleTimeout the wait
	// between two pieces of it. Defaults "10m" and "2m".
	FirstTimeout string `hcl:"first_timeout,optional"`
	IdleTimeout  string `hcl:"idle_timeout,optional"`
	// MaxOutputTokens of one call. Default 4096.
	MaxOutputTokens int32 `hcl:"max_output_tokens,optional"`
	// DataBoundaries that may be sent there. Required.
	DataBoundaries []string `hcl:"data_boundaries"`
	// Price; a route without one is refused.
	Price *Price    `hcl:"price,block"`
	Range hcl.Range `hcl:",def_range"`
}

// Price in US dollars for a million tokens.
type Price struct {
	Input  float64 `hcl:"input_usd_per_mtok"`
	Output float64 `hcl:"output_usd_per_mtok"`
	// Of input that the provider's cache served, and that it stored there. Default:
	// the price of input.
	CacheRead  *float64 `hcl:"cache_read_usd_per_mtok,optional"`
	CacheWrite *float64 `hcl:"cache_write_usd_per_mtok,optional"`
}

// Destination of http tools.
type Destination struct {
	Name         string `hcl:"name,label"`
	URL          string `hcl:"url,optional"` // required but for a command of an mcp block
	AllowPrivate bool   `hcl:"allow_private,optional"`
	CAFile       string `hcl:"ca_file,optional"`
	// Methods that tools may use. Default: GET, HEAD, POST, PUT, PATCH, DELETE.
	Methods []string `hcl:"methods,optional"`
	// Retries of what may be sent again: tools that read, and idempotent ones that the
	// destination refused for now (429). 0 is none. Default 2.
	Retries *int `hcl:"retries,optional"`
	// Pages says how the destination divides what it lists; without the block an answer
	// is one page.
	Pages *Pages `hcl:"pages,block"`
	// DataBoundaries that may be sent there; empty: any.
	DataBoundaries []string `hcl:"data_boundaries,optional"`
	// Credentials that may be sent there, by name.
	Credentials []Credential `hcl:"credential,block"`
	// Egress lets sandboxed code read packages from it; without the block it cannot.
	Egress *Egress `hcl:"egress,block"`
	// MCP makes it an MCP server, for tools of kind "mcp" alone.
	MCP *MCP `hcl:"mcp,block"`
	// SSH makes it a host, for tools of kind "ssh" alone.
	SSH   *SSH      `hcl:"ssh,block"`
	Range hcl.Range `hcl:",def_range"`
}

// MCP makes a destination an MCP server: over streamable HTTP, with the URL as the exact
// endpoint, beside which nothing is ever asked; or, with a command and without a URL, as
// a program of this machine that is started in a sandbox for each call. That one gets no
// network, no credential and no environment, a read-only root and a scratch directory
// that is gone with it.
type MCP struct {
	// Command with its arguments, by its absolute path.
	Command []string `hcl:"command,optional"`
	// ReadOnly folders that a command sees at their own place. Beside them it sees /usr.
	ReadOnly []string `hcl:"read_only,optional"`
	// Env is refused: no sandbox ever holds a secret.
	Env map[string]string `hcl:"env,optional"`
	// MaxOpen calls of a command at a time. Default 4.
	MaxOpen int `hcl:"max_open,optional"`
	// MemoryMiB, CPUMillis (1000 is one core), PIDs and ScratchMiB of one call. Default
	// 512, 1000, 64 and 64.
	MemoryMiB  int `hcl:"memory_mib,optional"`
	CPUMillis  int `hcl:"cpu_millis,optional"`
	PIDs       int `hcl:"pids,optional"`
	ScratchMiB int `hcl:"scratch_mib,optional"`
	// Credential of the destination with which `bivouac mcp tools` and `tools
	// effective` list what the server offers; empty: none. It needs no grant, since the
	// operator bound it, and calls nothing. A tool names its own, which a grant gives.
	Credential string `hcl:"credential,optional"`
	// Timeout of one call with the handshake and the list before it; a tool's own may
	// be shorter. Default "1m".
	Timeout string `hcl:"timeout,optional"`
	// MaxAnswerKiB of one answer, and of the whole list of tools. Default 4096.
	MaxAnswerKiB int `hcl:"max_answer_kib,optional"`
	// MaxTools that the server may list. Default 256.
	MaxTools int `hcl:"max_tools,optional"`
	// MaxSchemaKiB and MaxSchemaDepth of one tool's input schema. Default 64, and 32.
	MaxSchemaKiB   int `hcl:"max_schema_kib,optional"`
	MaxSchemaDepth int `hcl:"max_schema_depth,optional"`
}

// Egress makes a destination a registry of packages for sandboxed code. It needs
// data_boundaries: what is asked for is said to whoever runs it.
type Egress struct {
	// Protocol is "go" (a module proxy), "npm" (a registry) or "git" (over HTTPS). It
	// decides the verbs: what reads, and nothing else.
	Protocol string `hcl:"protocol"`
	// Credential of the destination that goes along; empty: none does. It needs no
	// grant: as with a model route, the operator bound it.
	Credential string `hcl:"credential,optional"`
	// MaxMiBPerTurn that one turn may move, in both directions. Default 2048.
	MaxMiBPerTurn int64 `hcl:"max_mib_per_turn,optional"`
	// MaxOpen requests of one turn at a time. Default 16.
	MaxOpen int `hcl:"max_open,optional"`
}

// Credential binds a credential of the asking tenant to a destination.
type Credential struct {
	Name string `hcl:"name,label"`
	// Header that carries it. Default Authorization.
	Header string `hcl:"header,optional"`
	// Format with {value} once. Default "Bearer {value}".
	Format string `hcl:"format,optional"`
	// From is the engine of the vault block's server that issues it for each action.
	// Without the block it is a value that the tenant stores.
	From  *issued.From `hcl:"from,block"`
	Range hcl.Range    `hcl:",def_range"`
}

// Vault is a block that this package does not read: it knows no implementation of
// its Authority port.
type Vault struct {
	Body hcl.Body `hcl:",remain"`
}

// Consul is a block that this package does not read: it knows no implementation of its
// Paths port.
type Consul struct {
	Body hcl.Body `hcl:",remain"`
}

// Caps of tenants, destinations and spend.
type Caps struct {
	// Tenants that are served, by name or id; absent: every one.
	Tenants []string `hcl:"tenants,optional"`
	// SpendUSDPerHour of all tenants together, in any sixty minutes.
	SpendUSDPerHour *float64 `hcl:"spend_usd_per_hour,optional"`
	// Tenant narrows single tenants.
	Tenant []TenantCap `hcl:"tenant,block"`
	Range  hcl.Range   `hcl:",def_range"`
}

// TenantCap narrows one tenant.
type TenantCap struct {
	Name            string   `hcl:"name,label"`
	SpendUSDPerHour *float64 `hcl:"spend_usd_per_hour,optional"`
	// Destinations and Models it may reach; absent: all that paths allow.
	Destinations []string  `hcl:"destinations,optional"`
	Models       []string  `hcl:"models,optional"`
	Range        hcl.Range `hcl:",def_range"`
}

// Default fills what a file or a caller left out.
func (c Config) withDefaults() Config {
	or := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	or(&c.Listen, "127.0.0.1:7402")
	or(&c.Pool, "default")
	if c.Consul == nil {
		or(&c.Paths, "paths")
	}
	if len(c.Servers) == 0 {
		c.Servers = []string{"127.0.0.1:7401"}
	}
	if c.Authority == 0 {
		c.Authority = 15 * time.Second
	}
	if c.FeedLimit == 0 {
		c.FeedLimit = 2 * time.Second
	}
	if c.Caps == nil {
		c.Caps = &Caps{}
	}
	if c.Caps.SpendUSDPerHour == nil {
		spend := float64(DefaultSpendUSD)
		caps := *c.Caps
		caps.SpendUSDPerHour, c.Caps = &spend, &caps
	}
	c.Models = append([]Model(nil), c.Models...)
	for i := range c.Models {
		c.Models[i] = c.Models[i].withDefaults()
	}
	c.OAuth2 = append([]OAuth2(nil), c.OAuth2...)
	for i := range c.OAuth2 {
		c.OAuth2[i] = c.OAuth2[i].withDefaults()
	}
	c.Destinations = append([]Destination(nil), c.Destinations...)
	for i := range c.Destinations {
		d := &c.Destinations[i]
		d.Credentials = append([]Credential(nil), d.Credentials...)
		for j := range d.Credentials {
			d.Credentials[j] = d.Credentials[j].withDefaults()
		}
		d.Egress, d.MCP, d.Pages, d.SSH = d.Egress.withDefaults(), d.MCP.withDefaults(), d.Pages.withDefaults(), d.SSH.withDefaults()
	}
	return c
}

func (c Credential) withDefaults() Credential {
	if c.From != nil { // its engine says in which headers it travels
		c.From = c.From.WithDefaults()
		return c
	}
	c.Header, c.Format = cmp.Or(c.Header, "Authorization"), cmp.Or(c.Format, "Bearer {value}")
	return c
}

func (e *Egress) withDefaults() *Egress {
	if e == nil {
		return nil
	}
	out := *e
	if out.MaxMiBPerTurn == 0 {
		out.MaxMiBPerTurn = 2048
	}
	if out.MaxOpen == 0 {
		out.MaxOpen = 16
	}
	return &out
}

func (m *MCP) withDefaults() *MCP {
	if m == nil {
		return nil
	}
	out, d := *m, mcp.DefaultBounds
	out.Timeout = cmp.Or(out.Timeout, d.Timeout.String())
	out.MaxAnswerKiB = cmp.Or(out.MaxAnswerKiB, d.MaxAnswer>>10)
	out.MaxTools = cmp.Or(out.MaxTools, d.MaxTools)
	out.MaxSchemaKiB = cmp.Or(out.MaxSchemaKiB, d.MaxSchema>>10)
	out.MaxSchemaDepth = cmp.Or(out.MaxSchemaDepth, d.MaxSchemaDepth)
	return &out
}

func (m Model) withDefaults() Model {
	or := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	or(&m.Format, provider.OpenAIChat)
	or(&m.LimitField, "max_tokens")
	or(&m.FirstTimeout, provider.DefaultFirst.String())
	or(&m.IdleTimeout, provider.DefaultIdle.String())
	if m.MaxOutputTokens == 0 {
		m.MaxOutputTokens = 4096
	}
	if m.CredentialHeader == "" && m.CredentialFormat == "" {
		b := provider.DefaultBinding(m.Format)
		m.CredentialHeader, m.CredentialFormat = b.Header, b.Format
	}
	or(&m.CredentialHeader, "Authorization")
	if strings.EqualFold(m.CredentialHeader, "Authorization") {
		or(&m.CredentialFormat, "Bearer {value}")
	}
	or(&m.CredentialFormat, "{value}")
	return m
}

// Path of a file that the configuration names.
func (c Config) Path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.Dir, name)
}

func micro(usd float64) int64 { return int64(math.Round(usd * 1e6)) }

// budgetCaps are the caps in the words of package budget.
func (c *Caps) budgetCaps() budget.Caps {
	out := budget.Caps{PerHour: micro(*c.SpendUSDPerHour), PerTenantHour: map[string]int64{}}
	for _, t := range c.Tenant {
		if t.SpendUSDPerHour != nil {
			out.PerTenantHour[t.Name] = micro(*t.SpendUSDPerHour)
		}
	}
	return out
}

// Governed are the names under which paths govern what this configuration can reach.
func (c Config) Governed() (names []string) {
	for _, m := range c.Models {
		names = append(names, ModelDestination(m.Name))
	}
	for _, d := range c.Destinations {
		names = append(names, d.Name)
	}
	return names
}

// ModelDestination is the name under which paths govern a model route.
func ModelDestination(route string) string { return consul.ModelDestination(route) }
