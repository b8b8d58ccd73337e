package supervise

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"bivouac/edge/protocol"
)

// SocketName of a supervisor in its directory.
const SocketName = "supervise.sock"

// maxSocketPath is what fits into a socket address on every system.
const maxSocketPath = 100

// Listen opens the socket of an attempt's directory. A socket that a dead
// supervisor left is replaced; a living one refuses.
func Listen(dir string) (net.Listener, error) {
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	if c, err := dialSocket(context.Background(), dir); err == nil {
		c.Close()
		return nil, protocol.Errorf(protocol.CodeAlreadyExists, "a supervisor runs in %s already", dir)
	}
	name := filepath.Join(dir, SocketName)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var l net.Listener
	err := withShortPath(dir, func(short string) (err error) {
		l, err = net.Listen("unix", filepath.Join(short, SocketName))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func dialSocket(ctx context.Context, dir string) (c net.Conn, err error) {
	var d net.Dialer
	err = withShortPath(dir, func(short string) (err error) {
		c, err = d.DialContext(ctx, "unix", filepath.Join(short, SocketName))
		return err
	})
	return c, err
}

// withShortPath gives fn a path of the directory that fits into a socket address.
func withShortPath(dir string, fn func(short string) error) error {
	if len(filepath.Join(dir, SocketName)) <= maxSocketPath {
		return fn(dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return fn("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// Client reaches the supervisor of an attempt's directory over HTTP/2. Its base
// URL is "http://supervisor". The caller closes idle connections.
func Client(dir string) *http.Client {
	return ClientOver(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, dir) })
}

// ClientOver is Client with another way to dial.
func ClientOver(dial func(ctx context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		Protocols:          plainHTTP2(),
		DisableCompression: true,
	}}
}

func plainHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}
