package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// Whose state is copied, or made, is found where there is one deployment, and asked
// where a guess could be the wrong one. What the refusal names works.
func TestStateIsFoundAndNotGuessed(t *testing.T) {
	for name, c := range map[string]struct {
		there []string
		state state
		want  string // below the home of states; empty: refused
	}{
		"server by itself":                {[]string{"server/bivouac.db", "broker/keyring.age"}, state{}, "server"},
		"server whose state is gone":      {[]string{"broker/keyring.age"}, state{}, "server"},
		"bivouac dev":                     {[]string{"dev/server/bivouac.db", "dev/broker/keyring.age"}, state{}, "dev/server"},
		"bivouac dev, state gone":         {[]string{"dev/broker/keyring.age"}, state{}, "dev/server"},
		"bivouac dev, and an empty place": {[]string{"dev/server/bivouac.db", "server/"}, state{}, "dev/server"},
		"both":                            {[]string{"server/bivouac.db", "dev/server/bivouac.db"}, state{}, ""},
		"none":                            {nil, state{}, ""},
		"both, and the state elsewhere":   {[]string{"server/bivouac.db", "dev/server/bivouac.db"}, state{dsnFile: "dsn", blobs: "blobs"}, "server"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("XDG_STATE_HOME", home)
			for _, f := range c.there {
				path := filepath.Join(home, "bivouac", f)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(f, "/") {
					path = filepath.Join(path, "")
					if err := os.MkdirAll(path, 0o700); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := c.state.settle("backup")
			if c.want != "" {
				if want := filepath.Join(home, "bivouac", c.want); err != nil || c.state.data != want {
					t.Errorf("%q, %v, want %s", c.state.data, err, want)
				}
				return
			}
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Fatalf("%q, %v", c.state.data, err)
			}
			for _, part := range []string{"server", "dev/server"} {
				if dir := filepath.Join(home, "bivouac", part); !strings.Contains(err.Error(), "--data "+dir) {
					t.Errorf("%s is not named: %v", dir, err)
				}
			}
			if elsewhere := strings.Contains(err.Error(), "on the server's machine, as its user, bivouac-server backup FILE"); elsewhere != (c.there == nil) {
				t.Errorf("whether the server is elsewhere: %v", err)
			}
			c.state.data = "named"
			if err := c.state.settle("backup"); err != nil || c.state.data != "named" {
				t.Errorf("named: %q, %v", c.state.data, err)
			}
		})
	}
}

// The directory that bivouac dev prints as its state is a whole deployment: what is read
// or written there is nobody's. The server's own in it is taken.
func TestWholeDeploymentIsNoState(t *testing.T) {
	dev := filepath.Join(t.TempDir(), "dev")
	if err := os.MkdirAll(filepath.Join(dev, "server"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev, "addresses.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := state{data: dev}
	if err := s.settle("backup"); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "--data "+filepath.Join(dev, "server")) {
		t.Errorf("the whole: %v", err)
	}
	s.data = filepath.Join(dev, "server")
	if err := s.settle("backup"); err != nil {
		t.Errorf("the server's: %v", err)
	}
}
