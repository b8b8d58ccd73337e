package outward

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// command makes this test's binary a command of Run.
const command = "BIVOUAC_OUTWARD_COMMAND"

func TestMain(m *testing.M) {
	if at, ok := os.LookupEnv(command); ok {
		res, err := http.Get(at)
		fmt.Println(err == nil && res.StatusCode == http.StatusOK)
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// free is a port that nobody has now.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A command reaches the socket by its port, and its exit status is Run's; without a
// door it reaches nothing.
func TestCommandReachesTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "0")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Close(); <-done }()
	for _, c := range []struct {
		socket string
		open   bool
	}{{socket, true}, {socket + "-none", false}} {
		port := free(t)
		t.Setenv(command, "http://127.0.0.1:"+port)
		var out, said bytes.Buffer
		code := Run([]string{port + "=" + c.socket, "--", os.Args[0]}, nil, &out, &said)
		if code != 7 || strings.TrimSpace(out.String()) != fmt.Sprint(c.open) {
			t.Errorf("%v: exit %d, %q %q", c, code, out.String(), said.String())
		}
		if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			conn.Close()
			t.Error("the door is open after the command")
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--", "/bin/sh", "-c", "exit 3"}, 3, ""},
		{[]string{"--", "/bin/sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"--", "/nonexistent"}, notStarted, "nonexistent"},
		{[]string{"x", "--", "true"}, badUsage, "PORT=SOCKET"},
		{[]string{"0=/x", "--", "true"}, badUsage, "PORT=SOCKET"},
		{[]string{"80=", "--", "true"}, badUsage, "PORT=SOCKET"},
		{[]string{"80=/x"}, badUsage, "usage"},
	} {
		var said bytes.Buffer
		if code := Run(c.args, nil, &said, &said); code != c.code || !strings.Contains(said.String(), c.says) {
			t.Errorf("%v: %d %q", c.args, code, said.String())
		}
	}
}
