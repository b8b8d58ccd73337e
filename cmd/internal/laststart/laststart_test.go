package laststart_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/laststart"
	"bivouac/edge/protocol"
)

var flags = laststart.Flags{Words: []string{"listen", "server", "database"}, Paths: []string{"cert", "dsn-file"}, Instead: []string{"database", "dsn-file"}}

// line is a command that was given args.
func line(t *testing.T, args ...string) *cobra.Command {
	t.Helper()
	c := &cobra.Command{}
	for _, name := range []string{"listen", "database", "cert", "dsn-file", "code-file"} {
		c.Flags().String(name, "", "")
	}
	c.Flags().StringArray("server", nil, "")
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKeepAndApply(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	before := line(t, "--listen", "127.0.0.1:1", "--server", "a:1", "--server", "b:2", "--cert", "api.crt", "--dsn-file", "dsn", "--code-file", "code")
	given, err := flags.Given(before)
	if err != nil {
		t.Fatal(err)
	}
	if none, err := laststart.Read(dir); none != nil || err != nil {
		t.Errorf("before a start: %v, %v", none, err)
	}
	if err := given.Keep(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(laststart.File); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	last, err := laststart.Read(dir)
	if err != nil || last["code-file"] != nil {
		t.Fatalf("%v, %v", last, err)
	}
	bare := line(t)
	if flags.Any(bare) || flags.Any(line(t, "--code-file", "x")) || !flags.Any(before) {
		t.Error("what is bare is not told from what is not")
	}
	if some, err := flags.Apply(last, bare); err != nil || !some {
		t.Fatalf("%v, %v", some, err)
	}
	servers, _ := bare.Flags().GetStringArray("server")
	cert, _ := bare.Flags().GetString("cert")
	if len(servers) != 2 || servers[1] != "b:2" || cert != filepath.Join(dir, "api.crt") {
		t.Errorf("servers %v, certificate %s", servers, cert)
	}
	// What is given wins, and what is given instead keeps the other out.
	other := line(t, "--listen", "127.0.0.1:9", "--database", "host=db", "--server", "c:3")
	if _, err := flags.Apply(last, other); err != nil {
		t.Fatal(err)
	}
	listen, _ := other.Flags().GetString("listen")
	servers, _ = other.Flags().GetStringArray("server")
	if dsn, _ := other.Flags().GetString("dsn-file"); listen != "127.0.0.1:9" || dsn != "" || len(servers) != 1 {
		t.Errorf("listen %s, dsn-file %q, servers %v", listen, dsn, servers)
	}
	if some, err := flags.Apply(nil, line(t)); some || err != nil {
		t.Errorf("of nothing: %v, %v", some, err)
	}
	if err := os.WriteFile(laststart.File, []byte("no json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := laststart.Read(dir); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("damaged: %v", err)
	}
}

// A start that names less than the one before is told what it leaves out; another value
// of a flag is none of that.
func TestWhatAStartLeavesOut(t *testing.T) {
	earlier := laststart.Start{"public": {"192.0.2.1:7400"}, "broker": {"192.0.2.1:7402"}}
	if got := (laststart.Start{"broker": {"127.0.0.1:7402"}}).Lost(earlier); !slices.Equal(got, []string{"--public 192.0.2.1:7400"}) {
		t.Errorf("fewer: %v", got)
	}
	if got := (laststart.Start{"broker": {"b:1"}, "public": {"p:1"}}).Lost(earlier); len(got) != 0 {
		t.Errorf("others: %v", got)
	}
}
