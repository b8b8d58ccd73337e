//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bivouac/test/process"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"bivouac-broker": main})
}

func TestScripts(t *testing.T) {
	// A port that is taken for as long as the scripts run.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() }) // the scripts run in parallel, after this function
	free, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("TAKEN", taken.Addr().String())
			e.Setenv("FREE", fmt.Sprintf("127.0.0.1:%d", free))
			e.Setenv("XDG_STATE_HOME", e.WorkDir+"/state")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"mode": mode, "waitready": waitready},
	})
}

// mode FILE OCTAL: the permissions of a file.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := info.Mode().Perm().String(); (got == args[1]) == neg {
		ts.Fatalf("%s has %s, want %s", args[0], got, args[1])
	}
}

// waitready ADDRESS: until something listens there.
func waitready(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		c, err := net.Dial("tcp", args[0])
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(5 * time.Millisecond) // another process: there is nothing to wait on
	}
	ts.Fatalf("nothing listens on %s", args[0])
}
