package link_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// tunnels answers tunnels by path.
func tunnels(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/echo":
		link.ServeTunnel(w, r, time.Minute, func(_ context.Context, t *link.Tunnel) error {
			_, err := io.Copy(t, t)
			return err
		})
	case "/digest": // reads all, then answers
		link.ServeTunnel(w, r, 0, func(_ context.Context, t *link.Tunnel) error {
			sum := sha256.New()
			if _, err := io.Copy(sum, t); err != nil {
				return err
			}
			_, err := t.Write(sum.Sum(nil))
			return err
		})
	case "/breaks": // half of an answer, until somebody has read it
		link.ServeTunnel(w, r, 0, func(_ context.Context, t *link.Tunnel) error {
			_, err := t.Write([]byte("half"))
			_, err2 := t.Read(make([]byte, 1))
			return errors.Join(err, err2, errors.New("upstream went"))
		})
	case "/silent":
		link.ServeTunnel(w, r, 30*time.Millisecond, func(_ context.Context, t *link.Tunnel) error {
			_, err := t.Read(make([]byte, 1))
			return err
		})
	case "/forever":
		link.ServeTunnel(w, r, 0, func(ctx context.Context, _ *link.Tunnel) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	case "/refused":
		link.RefuseTunnel(w, protocol.Errorf(protocol.CodePolicyDenied, "%s may not go to %s", "agent-coder", r.Header.Get("Bivouac-To")))
	default:
		whoCalls(w, r)
	}
}

// overBoth runs a test over each transport.
func overBoth(t *testing.T, test func(t *testing.T, f *fixture, c *link.Client)) {
	for name, network := range map[string]link.Network{
		link.HTTP3: {},
		link.HTTP2: {ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, net.ErrClosed }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.patient = name == link.HTTP3
			cfg := f.config()
			cfg.Network = network
			c := dial(t, cfg)
			if err := c.Connect(t.Context()); err != nil || c.Transport() != name {
				t.Fatalf("over %s: %v", c.Transport(), err)
			}
			test(t, f, c)
			for kind, n := range c.Streams() {
				if n.Open != 0 {
					t.Errorf("%d streams of kind %s are open", n.Open, kind)
				}
			}
		})
	}
}

func TestTunnelCarriesBothWaysAtOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, _ *fixture, c *link.Client) {
		tunnel, err := c.Tunnel(t.Context(), "/echo", link.TunnelOptions{Idle: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer tunnel.Close()
		// A question and its answer, again and again: nothing waits for more bytes.
		for _, word := range []string{"a", "bc", strings.Repeat("d", 100_000)} {
			got := make([]byte, len(word))
			var g errgroup.Group
			g.Go(func() error { _, err := io.WriteString(tunnel, word); return err })
			if _, err := io.ReadFull(tunnel, got); err != nil || string(got) != word {
				t.Fatalf("%d bytes came back as %d, %v", len(word), len(got), err)
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		// Much more than all buffers, in both directions together.
		sent := make([]byte, 16<<20)
		rand.Read(sent)
		var g errgroup.Group
		g.Go(func() error {
			if _, err := tunnel.Write(sent); err != nil {
				return err
			}
			return tunnel.CloseWrite()
		})
		got, err := io.ReadAll(tunnel)
		if err := errors.Join(err, g.Wait()); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d of %d bytes came back, %v", len(got), len(sent), err)
		}
		tunnel.Close()
		n := c.Streams()["echo"]
		if want := int64(100_003 + 16<<20); n.BytesIn != want || n.BytesOut != want || n.Opened != 1 || n.Open != 0 {
			t.Errorf("counted %+v, want %d bytes each way", n, want)
		}
	})
}

func TestTunnelEndsAsItsSidesSay(t *testing.T) {
	overBoth(t, func(t *testing.T, f *fixture, c *link.Client) {
		open := func(path string) *link.Tunnel {
			t.Helper()
			tunnel, err := c.Tunnel(t.Context(), path, link.TunnelOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { tunnel.Close() })
			return tunnel
		}
		// Half closed: the answer comes after the end of the question.
		tunnel := open("/digest")
		sent := bytes.Repeat([]byte("x"), 3<<20)
		if _, err := tunnel.Write(sent); err != nil {
			t.Fatal(err)
		}
		if err := tunnel.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		want := sha256.Sum256(sent)
		if got, err := io.ReadAll(tunnel); err != nil || !bytes.Equal(got, want[:]) {
			t.Errorf("the answer is %x, %v", got, err)
		}
		tunnel.Close()

		// Broken off by the other side: never mistaken for a whole answer.
		tunnel = open("/breaks")
		half := make([]byte, 4)
		if _, err := io.ReadFull(tunnel, half); err != nil || string(half) != "half" {
			t.Fatalf("read %q, %v", half, err)
		}
		if _, err := tunnel.Write([]byte("!")); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(tunnel); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("a broken answer reads as %q, %v", got, err)
		}
		tunnel.Close()

		// Broken off here: the handler is told.
		tunnel = open("/digest")
		if _, err := tunnel.Write(sent[:100]); err != nil {
			t.Fatal(err)
		}
		tunnel.Close()
		if _, err := tunnel.Read(make([]byte, 1)); protocol.CodeOf(err) != protocol.CodeCancelled {
			t.Errorf("reading a closed tunnel: %v", err)
		}

		// With the context, and its cause.
		ctx, cancel := context.WithCancelCause(t.Context())
		tunnel, err := c.Tunnel(ctx, "/forever", link.TunnelOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cancel(protocol.Errorf(protocol.CodeLeaseExpired, "no authority"))
		if _, err := tunnel.Read(make([]byte, 1)); protocol.CodeOf(err) != protocol.CodeLeaseExpired {
			t.Errorf("the end of its context reads as %v", err)
		}
		tunnel.Close()

		for start := time.Now(); f.link.Streams()["digest"].Open+f.link.Streams()["forever"].Open > 0; time.Sleep(time.Millisecond) {
			if time.Since(start) > 2*time.Minute {
				t.Fatalf("handlers were not told: %+v", f.link.Streams())
			}
		}
	})
}

func TestTunnelThatIsIdleIsReaped(t *testing.T) {
	overBoth(t, func(t *testing.T, _ *fixture, c *link.Client) {
		tunnel, err := c.Tunnel(t.Context(), "/silent", link.TunnelOptions{}) // by the other side
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tunnel.Read(make([]byte, 1)); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("reaped by the other side: %v", err)
		}
		tunnel.Close()
		tunnel, err = c.Tunnel(t.Context(), "/forever", link.TunnelOptions{Idle: 30 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tunnel.Read(make([]byte, 1)); protocol.CodeOf(err) != protocol.CodeDeadlineExceeded {
			t.Errorf("reaped here: %v", err)
		}
		tunnel.Close()
	})
}

func TestTunnelIsRefusedWithItsCode(t *testing.T) {
	overBoth(t, func(t *testing.T, f *fixture, c *link.Client) {
		_, err := c.Tunnel(t.Context(), "/refused", link.TunnelOptions{Header: http.Header{"Bivouac-To": {"example.org"}}})
		if protocol.CodeOf(err) != protocol.CodePolicyDenied || !strings.Contains(err.Error(), "agent-coder may not go to example.org") {
			t.Errorf("refused with %v", err)
		}
		if _, err := get(c, "/echo"); err == nil || !strings.Contains(err.Error(), "is for tunnels only") {
			t.Errorf("a plain request: %v", err)
		}
	})
}
