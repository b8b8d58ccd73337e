//go:build linux

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/test/e2e/stack"
)

// Whoever can reach the ports of a deployment and has neither a token nor a
// certificate of it gets nothing from any method of any of its listeners, except
// the door at which codes are shown. With a login, and with an enrolled key, the
// same listeners answer: the other tests of this package.
func TestStrangerGetsNothing(t *testing.T) {
	s := newStack(t, stack.Config{Script: tenantScript})
	me := first(t, s)
	at := addresses(t, s)

	t.Run("API", func(t *testing.T) {
		for name, token := range map[string]string{"none": "", "garbage": "garbage", "nobody's": me.token[:len(me.token)-8] + "aaaaaaaa"} {
			for _, m := range methods(apiv1.File_bivouac_v1_api_proto) {
				if a := unary(t, me.url+m.path, token, m.streams); a.status == http.StatusOK && !m.streams || !strings.Contains(a.body, `"unauthenticated"`) {
					t.Errorf("%s with the token %s: %+v", m.path, name, a)
				}
			}
		}
		if a := unary(t, me.url+"/bivouac.v1.PrincipalService/WhoAmI", me.token, false); a.status != http.StatusOK {
			t.Errorf("the rightful token: %+v", a)
		}
	})
	own, err := identity.SelfSigned(identitytest.NewKey(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	forged, _ := identitytest.NewRoot().Runner("ten_01aaaaaaaaaaaaaaaaaaaaaaaa")
	doors := map[string]bool{"/bivouac.runner.v1.RunnerService/Enroll": true,
		"/bivouac.broker.v1.TrustService/EnrollServer": true, "/bivouac.broker.v1.TrustService/RenewServer": true}
	for name, l := range map[string]struct {
		address string
		role    identity.Role
		files   []protoreflect.FileDescriptor
	}{
		"runners": {at["--runners"], identity.RoleServer, []protoreflect.FileDescriptor{runnerv1.File_bivouac_runner_v1_runner_proto, brokerv1.File_bivouac_broker_v1_broker_proto}},
		"broker":  {at["--broker"], identity.RoleBroker, []protoreflect.FileDescriptor{brokerv1.File_bivouac_broker_v1_broker_proto}},
	} {
		t.Run(name, func(t *testing.T) {
			for who, cert := range map[string]*tls.Certificate{"no certificate": nil, "a key of its own": &own, "another root's runner": forged} {
				c, refused := dialled(t, l.address, l.role, me.root().Raw, cert), 0
				for _, f := range l.files {
					for _, m := range methods(f) {
						switch code := called(t.Context(), c, m); {
						case code == protocol.CodeUnauthenticated, code == protocol.CodePermissionDenied, cert == forged && code == protocol.CodeUnavailable:
							refused++
						case doors[m.path] && code != "", code == unimplemented: // a bad code, or no such service here
						default:
							t.Errorf("%s with %s: %q", m.path, who, code)
						}
					}
				}
				if refused < 10 {
					t.Errorf("with %s only %d methods refused: the listener was not reached", who, refused)
				}
			}
		})
	}
	// A runner dials, and nobody can dial it.
	t.Run("a runner listens nowhere", func(t *testing.T) {
		edge := me.with(t).addEdge(stack.EdgeConfig{Name: "machine"})
		if ports := listening(t, edge.Daemon.PID()); len(ports) > 0 {
			t.Errorf("the daemon listens on %v", ports)
		}
		for name, p := range map[string]*stack.Process{"server": s.Server, "broker": s.Broker} {
			if len(listening(t, p.PID())) == 0 {
				t.Errorf("the search is blind: it finds no port of the %s", name)
			}
		}
	})
}

// addresses of the listeners, from the server's own command line.
func addresses(t *testing.T, s *stack.Stack) map[string]string {
	t.Helper()
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.Server.PID()), "cmdline"))
	if err != nil {
		t.Fatal(err)
	}
	argv, out := strings.Split(string(line), "\x00"), map[string]string{}
	for i, a := range argv {
		if strings.HasPrefix(a, "--") && i+1 < len(argv) {
			out[a] = argv[i+1]
		}
	}
	return out
}

type method struct {
	path    string
	streams bool
	kind    protoreflect.MethodDescriptor
}

func methods(f protoreflect.FileDescriptor) (out []method) {
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			out = append(out, method{"/" + string(s.FullName()) + "/" + string(m.Name()), m.IsStreamingClient() || m.IsStreamingServer(), m})
		}
	}
	return out
}

// unary posts an empty request, in the frame of a stream where the method is one.
func unary(t *testing.T, url, token string, stream bool) answer {
	t.Helper()
	body, kind := []byte("{}"), "application/json"
	if stream {
		body, kind = append(binary.BigEndian.AppendUint32([]byte{0}, 2), body...), "application/connect+json"
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, string(b)}
}

// dialled is the product's own link towards a listener that it knows by its root.
func dialled(t *testing.T, address string, role identity.Role, root []byte, cert *tls.Certificate) *link.Client {
	t.Helper()
	parsed, err := x509.ParseCertificate(root)
	if err != nil {
		t.Fatal(err)
	}
	cfg := link.Config{Address: address, Trust: link.Trust{Role: role, Root: parsed}, DialTimeout: 30 * time.Second}
	if cert != nil {
		cfg.Certificate = func() (*tls.Certificate, error) { return cert, nil }
	}
	c, err := link.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// unimplemented is the answer of a listener that does not have the service at all.
const unimplemented protocol.Code = "unimplemented"

// called calls a method with an empty message and returns the code of the refusal.
func called(ctx context.Context, c *link.Client, m method) protocol.Code {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cl := connect.NewClient[emptypb.Empty, emptypb.Empty](c, c.URL()+m.path)
	var err error
	switch {
	case m.kind.IsStreamingServer() && !m.kind.IsStreamingClient():
		s, e := cl.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
		if err = e; e == nil {
			s.Receive()
			err = s.Err()
			s.Close()
		}
	case m.kind.IsStreamingClient():
		s := cl.CallClientStream(ctx)
		_ = s.Send(&emptypb.Empty{}) // the answer tells why
		_, err = s.CloseAndReceive()
	default:
		_, err = cl.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	}
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return unimplemented
	}
	return protocol.CodeOf(protocol.FromConnect(err))
}

// listening are the TCP ports on which a process takes connections.
func listening(t *testing.T, pid int) (ports []string) {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(strings.TrimPrefix(to, "socket:"), "[]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(b)) {
			const listens = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listens && own[f[9]] {
				ports = append(ports, f[1])
			}
		}
	}
	return ports
}
