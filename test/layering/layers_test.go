package layering

// layer is one row: a package (and everything below it without a row of its
// own), what it may import of this module, and why not more. Packages under one
// row may import each other; a package with a row of its own is another layer,
// also in a folder below. Who is allowed something and does not need it loses
// it. A nil external list allows any library.
type layer struct {
	pkg      string
	allow    []string
	external []string
	why      string
}

var contracts = []string{"connectrpc.com/connect", "google.golang.org/protobuf", "github.com/oklog/ulid/v2"}

var layers = []layer{
	// contracts
	{"edge/protocol", nil, contracts, "a contract imports the standard library and generated code only"},
	{"edge/protocol/canonical", []string{"edge/protocol"}, []string{"github.com/gowebpki/jcs"}, "canonical JSON is pure"},
	{"edge/protocol/secondkey", []string{"edge/protocol", "edge/runtime/runtimev1"}, []string{"google.golang.org/protobuf"}, "what an owner decides on is a digest of a contract"},
	{"edge/protocol/facts", []string{"edge/protocol"}, []string{}, "what a machine may say of itself is a bound of the contract"},
	{"edge/protocol/redact", nil, []string{}, "what looks like a secret is text"},
	{"edge/runtime", nil, contracts, "a contract"},
	{"edge/runtime/loop", []string{"edge/runtime", "edge/protocol"}, []string{"google.golang.org/protobuf", "github.com/santhosh-tekuri/jsonschema/v6", "golang.org/x/text"}, "the loop is pure"},
	{"edge/supervise/protocol", []string{"edge/protocol"}, contracts, "a contract"},
	{"server/broker/protocol", []string{"edge/runtime/runtimev1"}, contracts, "a contract"},
	{"server/api/apiv1", nil, contracts, "a contract"},
	{"edge/identity", []string{"edge/protocol"}, []string{"github.com/oklog/ulid/v2"}, "identity is keys and certificates"},
	{"edge/lease", nil, []string{"golang.org/x/sys"}, "the clock seam depends on nothing"},
	{"edge/fault", nil, []string{}, "labels depend on nothing"},
	{"edge/shellword", nil, []string{}, "a word of a command line knows no command"},
	{"edge/op", nil, []string{}, "work and wake-ups know nobody's work"},

	// what a process shows of itself
	{"edge/metric", []string{"edge/protocol"}, []string{"github.com/prometheus/client_golang", "golang.org/x/sync"}, "a page of numbers knows nobody's numbers"},

	{"edge/durable", nil, []string{}, "a file on the disk knows nobody's content"},
	{"edge/filemode", []string{"edge/protocol"}, []string{}, "who may touch a file is its mode"},
	{"edge/finding", []string{"edge/legible", "edge/protocol"}, []string{"golang.org/x/sys"}, "what a doctor says is words"},
	{"edge/finding/reach", []string{"edge/finding", "edge/link", "edge/protocol"}, []string{}, "the way to a peer, over each transport"},

	// the edge: never server/**, except the generated broker contract in the relay
	{"edge/link", []string{"edge/protocol", "edge/identity"}, nil, "the link knows peers and transports"},
	{"edge/journal", []string{"edge/durable", "edge/protocol"}, nil, "the journal stores bytes"},
	{"edge/device", []string{"edge/protocol"}, nil, "device actions know files only"},
	{"edge/sandbox", []string{"edge/protocol"}, nil, "a sandbox knows processes only"},
	{"edge/workspace", []string{"edge/protocol"}, nil, "a workspace is files and git"},
	{"edge/relay", []string{"edge/protocol", "edge/runtime", "edge/link", "edge/lease", "server/broker/protocol"}, nil, "the only edge package that speaks to the broker"},
	{"edge/worker", []string{"edge/protocol", "edge/runtime", "edge/fault"}, nil, "the worker has one socket and the loop"},
	{"edge/worker/outward", nil, []string{}, "it copies bytes, inside of a sandbox"},
	{"edge/supervise", []string{"edge/durable", "edge/protocol", "edge/runtime", "edge/supervise/protocol", "edge/sandbox", "edge/journal", "edge/relay", "edge/workspace", "edge/lease", "edge/fault", "edge/worker/outward"}, nil, "a supervisor owns one attempt, and starts what stands in its sandboxes"},
	{"edge/owner", []string{"edge/shellword", "edge/filemode", "edge/protocol", "edge/protocol/secondkey", "edge/device"}, nil, "what the owner allows is read from one file, and names device actions"},
	{"edge/legible", []string{}, []string{}, "what a person sees is text"},
	{"edge/lockfile", []string{}, []string{"golang.org/x/sys"}, "a lock is a file"},
	{"edge/state", []string{"edge/shellword", "edge/durable", "edge/filemode", "edge/lockfile", "edge/protocol", "edge/identity", "edge/sandbox", "edge/supervise/protocol"}, []string{"golang.org/x/sys", "google.golang.org/protobuf"}, "the directory of a runner keeps what it is given"},
	{"edge/allocation", []string{"edge/op", "edge/protocol", "edge/state"}, []string{}, "a task of another scheduler takes an attempt, and knows no daemon's inside"},
	{"edge/service", []string{"edge/durable", "edge/protocol", "edge/state"}, []string{}, "a unit starts the program; it knows the directory alone"},
	{"edge/doctor", []string{"edge", "edge/finding", "edge/finding/reach", "edge/identity", "edge/link", "edge/owner", "edge/protocol", "edge/sandbox", "edge/state"}, []string{}, "a doctor sees the whole runner, and no backend's inside"},
	{"edge", []string{"edge/op", "edge/legible", "edge/durable", "edge/filemode", "edge/metric", "edge/protocol", "edge/supervise/protocol", "edge/journal", "edge/link", "edge/lease", "edge/fault", "edge/identity", "edge/device", "edge/owner", "edge/sandbox", "edge/state"}, nil, "the daemon reaches a turn through its supervisor's contract alone"},

	// pure server packages; session and execution never import each other
	{"server/steptable", []string{"edge/protocol"}, []string{}, "step tables know no record"},
	{"server/session", []string{"edge/protocol", "edge/runtime/runtimev1", "server/steptable"}, nil, "sessions know no runners"},
	{"server/execution", []string{"edge/protocol", "server/steptable"}, nil, "execution knows no sessions"},
	{"server/policy", []string{"edge/protocol", "edge/runtime/runtimev1", "edge/runtime/loop/schema"}, nil, "policy is pure"},
	{"server/placement", []string{"edge/protocol", "edge/protocol/secondkey", "server/execution"}, nil, "placement is pure"},
	{"server/planted", nil, []string{}, "names of bugs depend on nothing"},
	{"server/capability", []string{"edge/protocol"}, nil, "claims and signatures"},

	// the control plane
	{"server/store", []string{"edge/durable", "edge/lockfile", "edge/protocol", "server/session", "server/execution", "server/policy", "server/planted"}, nil, "the store knows records, not decisions"},
	{"server/store/blob", []string{"edge/durable", "edge/protocol"}, nil, "blobs are bytes"},
	{"server/scheduler", []string{"edge/protocol", "server/execution", "server/placement"}, nil, "a scheduler places"},
	{"server/scheduler/schedulertest", []string{"edge/protocol", "server/execution", "server/placement"}, []string{}, "a suite knows the port only"},
	{"test/diagrams", []string{"server/session", "server/execution"}, []string{}, "diagrams come from the tables alone"},
	{"server/engine", []string{"edge/op", "edge/protocol", "edge/runtime", "edge/lease", "edge/fault", "server/session", "server/execution", "server/policy", "server/placement", "server/capability", "server/ledger", "server/planted", "server/store", "server/trace", "server/broker/protocol", "consul/refused"}, nil, "the engine speaks no wire format and knows no transport"},

	{"server/engine/enginetest", []string{"edge/op", "server/placement", "edge/protocol", "edge/runtime", "edge/lease", "server/session", "server/execution", "server/policy", "server/scheduler", "server/capability", "server/ledger", "server/store", "server/broker/protocol", "server/engine"}, nil, "a world to drive the engine in"},

	// the broker: no state database, no engine; of sandboxes what MCP servers of its own
	// machine run in, which broker.hcl alone can name
	{"server/broker", []string{"server/broker/oauth", "edge/sandbox", "server/broker/issued", "server/broker/forward", "server/broker/provider", "server/broker/gateway", "server/broker/mcp", "server/broker/ssh", "edge/durable", "edge/filemode", "consul", "edge/finding", "edge/metric", "edge/op", "edge/protocol", "edge/fault", "edge/identity", "edge/lease", "edge/link", "edge/runtime/runtimev1", "server/broker/protocol", "server/broker/scripted", "server/capability", "server/intercept", "server/ledger"}, nil, "the broker holds credentials and no state, and knows no keyring"},
	{"server/broker/provider", []string{"consul", "edge/protocol", "edge/runtime/runtimev1", "server/broker/egress", "server/broker/secret"}, []string{}, "a provider's format knows no budget and no call log"},
	{"server/broker/gateway", []string{"consul", "edge/protocol", "server/broker/egress", "server/broker/protocol", "server/broker/secret"}, []string{"golang.org/x/net"}, "an http tool knows no budget and no call log"},
	{"server/broker/issued", []string{"edge/protocol", "server/broker/secret"}, []string{"github.com/hashicorp/hcl/v2", "golang.org/x/crypto", "golang.org/x/net"}, "a credential's form is said before anybody asks for it"},
	{"server/broker/oauth", []string{"edge/finding", "edge/lease", "edge/op", "edge/protocol", "server/broker/egress", "server/broker/secret"}, []string{"golang.org/x/oauth2", "golang.org/x/sync"}, "a token knows no grant and no request"},
	{"server/broker/mcp", []string{"consul", "edge/legible", "edge/protocol", "edge/sandbox", "server/broker/egress", "server/broker/gateway", "server/broker/protocol", "server/broker/secret"}, []string{"github.com/modelcontextprotocol/go-sdk"}, "a client of MCP servers knows no budget and no call log, and nobody else speaks MCP"},
	{"server/broker/ssh", []string{"consul", "edge/legible", "edge/protocol", "server/broker/egress", "server/broker/gateway", "server/broker/protocol", "server/broker/secret"}, []string{"golang.org/x/crypto", "golang.org/x/sync"}, "a command on a host knows no budget and no call log, and nobody else speaks SSH"},
	{"server/broker/ssh/sshtest", []string{}, []string{"golang.org/x/crypto"}, "a host of SSH, inside a test"},
	{"server/broker/forward", []string{"consul", "edge/protocol", "server/broker/egress", "server/broker/secret"}, []string{}, "a forwarded request knows no budget and no call log"},
	{"server/broker/keyring", []string{"edge/filemode", "edge/durable", "edge/lockfile", "edge/protocol", "edge/identity", "server/broker/authority", "server/broker/secret", "server/capability"}, nil, "the keyring knows keys, and no request"},
	{"server/broker/assembly", []string{"edge/filemode", "edge/durable", "consul", "consul/catalog", "consul/client", "consul/intentions", "consul/mesh", "consul/settings", "edge/finding", "edge/link", "edge/metric", "edge/protocol", "edge/identity", "edge/sandbox", "edge/sandbox/bubblewrap", "server/broker", "vaultpolicy"}, nil, "the broker over its parts"},
	{"server/broker/scripted", []string{"edge/protocol", "server/broker/secret"}, nil, "a provider knows a wire format and nobody's contract"},
	{"consul", []string{"edge/filemode", "consul/refused", "edge/protocol"}, nil, "paths know names only"},
	{"consul/refused", nil, []string{}, "a sentence and its entry are text"},
	{"consul/client", []string{"edge/filemode", "edge/legible", "edge/protocol", "server/broker/secret"}, []string{"github.com/hashicorp/consul/api"}, "the one place that reads Consul's answers"},
	{"consul/plan", []string{"consul/client", "edge/protocol"}, []string{"github.com/hashicorp/hcl/v2", "github.com/zclconf/go-cty"}, "what Consul must have is data, and what it has instead is read"},
	{"consul/settings", []string{"consul", "consul/client", "edge/filemode", "edge/protocol", "edge/shellword"}, []string{"github.com/hashicorp/hcl/v2"}, "a block is read, and nobody asked but whose its token is"},
	{"consul/catalog", []string{"consul/client", "consul/settings", "edge/finding", "edge/legible", "edge/op", "edge/protocol", "server/broker/secret"}, []string{}, "an entry of the catalog decides nothing"},
	{"consul/mesh", []string{"consul/client", "consul/settings", "edge/identity", "edge/link", "edge/op", "edge/protocol"}, []string{"golang.org/x/sync"}, "an identity of Consul's knows no path"},
	{"consul/intentions", []string{"consul", "consul/catalog", "consul/client", "consul/refused", "consul/settings", "edge/filemode", "edge/finding", "edge/lease", "edge/op", "edge/protocol"}, []string{"github.com/hashicorp/hcl/v2", "golang.org/x/sync"}, "the watcher of intentions knows names and no request"},

	// Vault and OpenBao hold authority in the keyring's place; only the broker, its
	// command line and tests link it
	{"vaultpolicy", []string{"edge/filemode", "edge/finding", "edge/lease", "edge/legible", "edge/op", "edge/protocol", "edge/shellword", "server/broker/authority", "server/broker/issued", "server/broker/secret", "vaultpolicy/audit", "vaultpolicy/client", "vaultpolicy/login", "vaultpolicy/plan", "vaultpolicy/policies"}, []string{"github.com/hashicorp/hcl/v2", "golang.org/x/crypto", "golang.org/x/sync"}, "the adapter knows grants and credentials, and no request"},
	{"vaultpolicy/client", []string{"edge/legible", "edge/protocol", "server/broker/secret"}, []string{"github.com/hashicorp/vault/api"}, "the one place that reads these servers' answers"},
	{"vaultpolicy/audit", []string{"edge/protocol"}, []string{"github.com/fsnotify/fsnotify", "golang.org/x/sync"}, "a wake-up is read from lines, and asks nobody"},
	{"vaultpolicy/login", []string{"edge/filemode", "edge/protocol", "server/broker/secret", "vaultpolicy/client"}, []string{}, "a login knows no grant"},
	{"vaultpolicy/policies", []string{"edge/protocol", "server/broker/issued"}, []string{}, "what may be done is text, before anybody asks"},
	{"vaultpolicy/plan", []string{"edge/protocol", "server/broker/issued", "server/broker/secret", "vaultpolicy/client", "vaultpolicy/login", "vaultpolicy/policies"}, []string{}, "what a server must have is data"},

	// Nomad starts runners; the server asks it, and an admin's command line sets it up
	{"jobs", []string{"edge/shellword", "edge/filemode", "edge/finding", "edge/legible", "edge/op", "edge/protocol", "jobs/workload"}, []string{"github.com/hashicorp/nomad/api", "golang.org/x/mod"}, "what is asked of Nomad knows no turn"},
	{"jobs/jobstest", nil, []string{"github.com/go-jose/go-jose/v4"}, "a signer has keys and no rule"},
	{"jobs/workload", []string{"edge/protocol"}, []string{"github.com/go-jose/go-jose/v4"}, "an identity is judged by rules and keys alone"},

	// listeners and assembly
	{"server/intercept", []string{"edge/protocol"}, []string{"connectrpc.com/connect"}, "what happens around a call knows no state, so that a broker may use it"},
	{"server/transfer", []string{"edge/protocol", "server/intercept"}, []string{}, "chunks know no owner"},
	{"server/brokerlink", []string{"edge/durable", "edge/op", "edge/protocol", "edge/identity", "edge/link", "edge/runtime/runtimev1", "server/broker/protocol", "server/capability"}, nil, "the server's side of the trust: no store"},
	{"server/brokerlink/brokerlinktest", []string{"edge/protocol", "edge/identity", "edge/link", "edge/runtime/runtimev1", "server/broker/protocol", "server/capability"}, nil, "a small real broker"},
	{"server/api", []string{"edge/finding", "edge/protocol", "edge/identity", "edge/runtime/runtimev1", "server/api/apiv1", "server/broker/protocol/brokerv1", "server/engine", "server/execution", "server/intercept", "server/placement", "server/policy", "server/session", "server/store", "server/trace", "server/transfer"}, nil, "handlers translate; decisions are the engine's"},
	{"server/api/client", []string{"edge/finding", "edge/op", "edge/protocol", "server/api/apiv1"}, []string{"connectrpc.com/connect", "google.golang.org/protobuf"}, "a client links no server"},
	{"server/runnerapi", []string{"edge/legible", "edge/protocol", "edge/identity", "edge/link", "server/broker/protocol", "server/engine", "server/execution", "server/intercept", "server/policy", "server/store", "server/transfer"}, nil, "handlers for machines translate; decisions are the engine's"},
	{"server/ledger", []string{"edge/identity", "edge/protocol"}, []string{"golang.org/x/mod", "github.com/go-jose/go-jose/v4"}, "a ledger is verified without a server"},
	{"server/trace", []string{"edge/protocol", "server/session", "server/store"}, []string{"go.opentelemetry.io/proto/otlp", "google.golang.org/protobuf"}, "traces are made of what was recorded"},
	{"server/metric", []string{"edge/link", "edge/metric", "edge/protocol", "server/store"}, []string{}, "what is counted, and the values that labels can take"},
	{"server/doctor", []string{"edge/finding", "edge/finding/reach", "edge/identity", "edge/link", "edge/protocol", "server/broker/protocol", "server/store"}, []string{}, "a doctor asks, and decides nothing"},
	{"server/backup", []string{"edge/durable", "edge/lockfile", "edge/protocol", "server/store"}, nil, "a copy of rows and artifacts, whole or refused"},
	{"server", []string{"consul/catalog", "consul/client", "consul/mesh", "consul/settings", "jobs", "server/placement", "edge/durable", "edge/filemode", "edge/finding", "edge/finding/reach", "server/doctor", "edge/protocol", "edge/identity", "edge/lease", "edge/link", "edge/metric", "server/metric", "server/api", "server/backup", "server/broker/protocol/brokerv1", "server/brokerlink", "server/capability", "server/engine", "server/execution", "server/policy", "server/runnerapi", "server/scheduler", "server/store", "server/trace", "server/transfer"}, nil, "the server assembles"},

	// binaries: flags, configuration, run
	{"cmd/bivouac", []string{"edge/shellword", "cmd/internal/devdir", "edge/durable", "edge/filemode", "edge/finding", "edge/legible", "edge/lockfile", "consul/client", "consul/intentions", "consul/plan", "consul/refused", "edge/identity", "edge/owner", "edge/protocol", "edge/runtime/runtimev1", "edge/state", "edge/workspace", "server/api/apiv1", "server/api/client", "server/broker/scripted", "server/broker/secret", "server/ledger", "jobs", "vaultpolicy"}, nil, "a person's side of the public API, the tree of bivouac dev, and an admin's side of Vault and of Consul"},
	{"cmd/internal/usage", []string{"edge/protocol"}, []string{"github.com/spf13/cobra"}, "words of a command line know no command"},
	{"cmd/internal/devdir", []string{"edge/shellword", "edge/durable", "edge/protocol"}, []string{}, "where bivouac dev keeps its state is one place and its addresses, and a refusal of the wrong one"},
	{"cmd/internal/laststart", []string{"edge/durable", "edge/protocol"}, []string{"github.com/spf13/cobra"}, "which flags a start had, in a file of its data directory"},
	{"cmd/bivouac-server", []string{"edge/shellword", "cmd/internal/devdir", "cmd/internal/laststart", "cmd/internal/usage", "edge/finding", "edge/legible", "edge/protocol", "server"}, []string{"github.com/spf13/cobra"}, "flags, configuration, run"},
	{"cmd/bivouac-broker", []string{"edge/shellword", "cmd/internal/devdir", "cmd/internal/laststart", "cmd/internal/usage", "edge/filemode", "edge/finding", "edge/legible", "edge/protocol", "server/broker"}, []string{"github.com/spf13/cobra", "golang.org/x/term"}, "flags, configuration, the keyring's passphrase, run"},
	{"cmd/bivouac-edge", []string{"cmd/internal/devdir", "cmd/internal/usage", "edge"}, nil, "flags, configuration, run"},
	{"cmd/bivouac-worker", []string{"edge/protocol", "edge/sandbox/seccomp", "edge/worker", "edge/worker/outward"}, nil, "one inherited socket, and the tools of sandbox B"},

	// what proves it may see everything
	{"test", []string{"cmd", "consul", "edge", "jobs", "server", "vaultpolicy"}, nil, "tests see everything"},
}

// pure packages have no clock, randomness, I/O, locks or goroutines.
var pure = []string{
	"server/steptable", "server/session", "server/execution", "server/policy", "server/placement", "server/scheduler",
	"edge/runtime/loop", "edge/runtime/loop/schema", "edge/protocol/canonical", "edge/protocol/redact",
}

// goStatements is every file of the product that has a go statement, and what
// ends the goroutine. Everything else runs in an errgroup or a WaitGroup that
// somebody waits for: loops in Run, long I/O in an op runner.
var goStatements = map[string]string{
	"cmd/bivouac/cli/input.go":                 "a read of the terminal, which nothing interrupts, ends with the process",
	"cmd/bivouac-broker/passphrase.go":         "a read of the terminal, which nothing interrupts, ends with the process",
	"cmd/bivouac/cli/tree.go":                  "waits for a child process, and tells the tree that it is gone",
	"edge/sandbox/bubblewrap/probe_linux.go":   "kills or measures while Run waits for the process; the probe receives its answer",
	"edge/sandbox/bubblewrap/spawner_linux.go": "a thread that is never unlocked, so that it leaves the control groups; ends in close",
	"edge/sandbox/bubblewrap/start_linux.go":   "copies into the standard input of a process, and ends with it",
	"server/store/sqlite.go":                   "the writer: the one loop that Open starts; ends in close",
}

// closures names what a binary must never link; "/..." means everything below.
var closures = map[string][]string{
	"bivouac":        {"github.com/modelcontextprotocol/..."},
	"bivouac-broker": {"github.com/hashicorp/nomad/...", "bivouac/server/store/...", "bivouac/server/engine/...", "bivouac/edge/supervise/...", "bivouac/edge/device/...", "modernc.org/sqlite/...", "github.com/jackc/pgx/v5/..."},
	"bivouac-worker": {"github.com/hashicorp/nomad/...", "github.com/quic-go/quic-go/...", "modernc.org/sqlite/...", "github.com/jackc/pgx/v5/...", "database/sql", "bivouac/server/...", "github.com/modelcontextprotocol/...", "github.com/hashicorp/vault/..."},
	"bivouac-edge":   {"github.com/hashicorp/nomad/...", "bivouac/server/store/...", "bivouac/server/engine/...", "bivouac/server/broker/keyring/...", "modernc.org/sqlite/...", "github.com/modelcontextprotocol/...", "github.com/hashicorp/vault/..."},
	"bivouac-server": {"bivouac/edge/sandbox/...", "bivouac/edge/device/...", "bivouac/server/broker/keyring/...", "bivouac/server/broker/provider/...", "github.com/modelcontextprotocol/...", "github.com/hashicorp/vault/..."},
}
