//go:build linux

package broker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/protocol/brokerv1"
)

// What `bivouac mcp tools` shows of a command is what the program in its sandbox says,
// and its tools take no credential. INV-12.
func TestMCPToolsOfACommand(t *testing.T) {
	confine := bubblewrap.New(bubblewrap.Config{CgroupParent: fmt.Sprintf("bivouac-broker-test-%d", os.Getpid())})
	defer func() {
		if err := confine.Tidy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	dir, err := os.MkdirTemp("", "mcp-command-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "server")
	build := exec.Command("go", "build", "-o", program, "./mcp/testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := ParseConfig([]byte(fmt.Sprintf("destination \"notes\" {\n  mcp {\n    command = [%q, \"good\"]\n  }\n}\n", program)), "broker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Confined(t.Context(), confine); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	data := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(data); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	b, err := New(cfg, Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(data, "calls.log"), Sandbox: confine})
	if err != nil {
		t.Fatal(err)
	}
	in := &brokerv1.McpToolsRequest{TenantId: "ten_00000000000000000000000001", TenantName: "local", Destination: "notes"}
	out, err := brokerService{b}.McpTools(t.Context(), in)
	if err != nil || len(out.GetTools()) != 1 || out.GetTools()[0].GetName() != "search" || out.GetTools()[0].GetSchemaDigest() != canonical.Digest([]byte(out.GetTools()[0].GetInputSchema())) ||
		out.GetServerName() != "notes" || len(out.GetCredentials()) != 0 {
		t.Errorf("%v %v", out, err)
	}
	tool := &brokerv1.HttpTool{Destination: "notes", Mcp: &brokerv1.McpCall{Tool: "search", SchemaDigest: out.GetTools()[0].GetSchemaDigest()}}
	if err := b.destinations["notes"].admits(tool); err != nil {
		t.Error(err)
	}
	tool.Credential = "key"
	if err := b.destinations["notes"].admits(tool); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("a tool with a credential: %v", err)
	}
	if u := b.destinations["notes"].URL(); !strings.HasPrefix(u, "stdio:///") {
		t.Errorf("it is shown as %s", u)
	}
}
