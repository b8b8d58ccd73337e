package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateListsEveryProblem(t *testing.T) {
	c := Default()
	c.DataDir, c.PublicAddress, c.RunnerAddress, c.BrokerAddress = "", "nowhere", "127.0.0.1:notaport", ""
	c.TLSCertFile, c.MaxBlobBytes, c.Grace, c.AdvertiseRunner = "cert.pem", 0, -1, "x"
	err := c.Validate()
	if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Fatal(err)
	}
	for _, field := range []string{"data_dir", "public.address", "runners.address", "runners.advertise", "broker.address", "public.tls_cert", "max_blob_bytes", "grace"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not listed in: %v", field, err)
		}
	}
}

func TestClearTextOnLoopbackOnly(t *testing.T) {
	for address, fine := range map[string]bool{
		"127.0.0.1:7400": true, "localhost:7400": true, "[::1]:7400": true,
		"0.0.0.0:7400": false, ":7400": false, "192.168.1.2:7400": false, "server.example:7400": false,
	} {
		c := Default()
		c.PublicAddress = address
		if err := c.Validate(); (err == nil) != fine {
			t.Errorf("%s in the clear: %v", address, err)
		}
		c.TLSCertFile, c.TLSKeyFile = "cert.pem", "key.pem"
		if err := c.Validate(); err != nil {
			t.Errorf("%s with TLS: %v", address, err)
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFile(t *testing.T) {
	c, err := LoadFile(Default(), write(t, `
data_dir = "/var/lib/bivouac"
grace    = "7s"
public {
  address = "0.0.0.0:443"
  tls_cert = "c.pem"
  tls_key  = "k.pem"
}
runners { advertise = "bivouac.example:7401" }
broker {
  address   = "10.0.0.7:7402"
  code_file = "/run/code"
}
limits {
  max_queued_tenant    = 5
  max_session_idle     = "24h"
  max_session_lifetime = "720h"
  max_approval_wait    = "1h"
  allocation_ttl       = "7m"
}
database = "host=db dbname=bivouac passfile=/etc/pgpass"
store { max_connections = 9 }
blobs { dir = "/srv/blobs" }
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.DataDir, want.Grace, want.PublicAddress, want.TLSCertFile, want.TLSKeyFile = "/var/lib/bivouac", 7*time.Second, "0.0.0.0:443", "c.pem", "k.pem"
	want.AdvertiseRunner, want.BrokerAddress, want.BrokerCodeFile, want.Limits.MaxQueuedTenant = "bivouac.example:7401", "10.0.0.7:7402", "/run/code", 5
	want.Limits.AllocationTTL = 7 * time.Minute
	want.Limits.MaxSessionIdle, want.Limits.MaxSessionLifetime, want.Limits.MaxApprovalWait = 24*time.Hour, 720*time.Hour, time.Hour
	if c.Database != "host=db dbname=bivouac passfile=/etc/pgpass" || c.MaxConnections != 9 || c.BlobDir != "/srv/blobs" {
		t.Errorf("the database is %q with %d connections, artifacts are in %q", c.Database, c.MaxConnections, c.BlobDir)
	}
	if c.DataDir != want.DataDir || c.Grace != want.Grace || c.PublicAddress != want.PublicAddress || c.TLSCertFile != want.TLSCertFile ||
		c.TLSKeyFile != want.TLSKeyFile || c.AdvertiseRunner != want.AdvertiseRunner || c.RunnerAddress != want.RunnerAddress ||
		c.BrokerAddress != want.BrokerAddress || c.BrokerCodeFile != want.BrokerCodeFile || c.Limits != want.Limits || c.MaxBlobBytes != want.MaxBlobBytes {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// What is wrong is named with its place, not as something else that is missing.
func TestFileErrorsNameThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"data_dir = \"x\"\npublic {\n  address = \"a:1\" tls_cert = \"b\"\n}\n": "server.hcl:3",
		"data_dir = 5 5":                       "server.hcl:1",
		"\n\nport = 7\n":                       "server.hcl:3",
		"grace = \"soon\"\n":                   "grace",
		"limits { max_blob_bytes = {} }":       "server.hcl:1",
		`limits { max_session_idle = "soon" }`: "limits.max_session_idle",
		`limits { max_approval_wait = "0s" }`:  "limits.max_approval_wait",
		`limits { allocation_ttl = "soon" }`:   "limits.allocation_ttl",
	} {
		_, err := LoadFile(Default(), write(t, text))
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := LoadFile(Default(), filepath.Join(t.TempDir(), "absent.hcl")); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("an absent file: %v", err)
	}
}

func TestPortInUseIsSaidAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, flag := range []string{"--public", "--runners"} {
		c := Default()
		c.PublicAddress, c.RunnerAddress = "127.0.0.1:0", "127.0.0.1:0"
		if flag == "--public" {
			c.PublicAddress = taken.Addr().String()
		} else {
			c.RunnerAddress = taken.Addr().String()
		}
		_, err := listen(t.Context(), c)
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "port "+port) || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
	c := Default()
	c.PublicAddress, c.RunnerAddress = "127.0.0.1:0", "127.0.0.1:0"
	s, err := listen(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.runners.Addr().String() != s.packets.LocalAddr().String() {
		t.Errorf("TCP on %s, UDP on %s", s.runners.Addr(), s.packets.LocalAddr())
	}
	s.close()
}

func TestDataDirThatCannotBeWritten(t *testing.T) {
	file := write(t, "a file is no directory")
	if err := makeDataDir(file); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "--data") {
		t.Errorf("a file: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "made")
	if err := makeDataDir(dir); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
}

// Secrets and databases that others can touch are refused; closed they are taken.
func TestOpenDataDirIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := makeDataDir(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range secretFiles {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeDataDir(dir); err != nil {
		t.Fatalf("a closed one: %v", err)
	}
	for _, c := range []struct {
		name string
		mode os.FileMode
		mend string
	}{
		{"", 0o777, "chmod 700 "}, {"", 0o750, "chmod 700 "}, {databaseFile, 0o666, "chmod 600 "}, {databaseFile + "-wal", 0o644, "chmod 600 "},
		{resetKeyFile, 0o644, "chmod 600 "}, {"server.key", 0o640, "chmod 600 "},
	} {
		path := filepath.Join(dir, c.name)
		was, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := makeDataDir(dir); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), c.mend+path) {
			t.Errorf("%s with %04o: %v", path, c.mode, err)
		}
		if err := os.Chmod(path, was.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeDataDir(dir); err != nil {
		t.Errorf("closed again: %v", err)
	}
	conf := write(t, "grace = \"3s\"\n")
	if _, err := LoadFile(Default(), conf); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(conf, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFile(Default(), conf); err == nil || !strings.Contains(err.Error(), "chmod go-w "+conf) {
		t.Errorf("server.hcl that others can change: %v", err)
	}
}

func TestReplicaStays(t *testing.T) {
	dir := t.TempDir()
	first, err := replica(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := replica(dir); err != nil || again != first {
		t.Errorf("%s, then %s (%v)", first, again, err)
	}
	if other, err := replica(t.TempDir()); err != nil || other == first {
		t.Errorf("two directories, one name %s (%v)", other, err)
	}
	if err := os.WriteFile(filepath.Join(dir, replicaFile), []byte("rep_x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := replica(dir); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a damaged name: %v", err)
	}
}

// Two databases are one too many, and a pool too small for the loops is told.
func TestDatabaseSettings(t *testing.T) {
	c := Default()
	c.Database, c.DSNFile, c.MaxConnections = "host=a", "/etc/dsn", 2
	err := c.Validate()
	for _, want := range []string{"store.dsn_file", "store.max_connections"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named: %v", want, err)
		}
	}
	c.DSNFile, c.MaxConnections = "", 8
	if err := c.Validate(); err != nil {
		t.Errorf("its positive twin: %v", err)
	}
}
