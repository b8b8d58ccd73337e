//go:build linux

package vaulttest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/test/engines/child"
)

// answerIn bounds one request of a test, also on a machine that has much else to do.
const answerIn = 30 * time.Second

// client talks to the server at an address, which may be a proxy's. It takes nothing
// from the environment and asks once: how often something is asked is for tests to say.
func (s *Server) client(address, token string) (*api.Client, error) {
	c, err := api.NewClient(&api.Config{
		Address: address, Timeout: answerIn, MaxRetries: 0,
		HttpClient: &http.Client{Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: s.authority, MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true,
		}},
	})
	if err != nil {
		return nil, err
	}
	c.SetToken(token)
	c.ClearNamespace()
	return c, nil
}

// Client of a token. Its connections end with the test.
func (s *Server) Client(t testing.TB, token string) *api.Client {
	t.Helper()
	return s.ClientAt(t, s.Address(), token)
}

// ClientAt is a client whose requests go to another address, such as a proxy's.
func (s *Server) ClientAt(t testing.TB, address, token string) *api.Client {
	t.Helper()
	c, err := s.client(address, token)
	check(t, err)
	t.Cleanup(c.CloneConfig().HttpClient.CloseIdleConnections)
	return c
}

// Root is a client that may do everything, as the admin who sets the server up.
func (s *Server) Root(t testing.TB) *api.Client {
	t.Helper()
	return s.Client(t, s.root)
}

// RootToken is for what takes a token and no client.
func (s *Server) RootToken() string { return s.root }

// Prefix is new at each call: mounts, policies and roles of a test begin with it, so
// that tests on one server do not meet.
func (s *Server) Prefix() string { return fmt.Sprintf("t%d-", s.prefixes.Add(1)) }

// MountKV mounts a KV store with versions, in the namespace of c if it has one, and
// waits until it takes secrets: a new one first makes itself ready beside the answer.
func (s *Server) MountKV(t testing.TB, c *api.Client, mount string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), child.StartIn)
	defer cancel()
	check(t, c.Sys().MountWithContext(ctx, mount, &api.MountInput{Type: "kv", Options: map[string]string{"version": "2"}}))
	check(t, s.Await(ctx, "store at "+mount, func(ctx context.Context) bool {
		_, err := c.Logical().ReadWithContext(ctx, mount+"/config")
		return err == nil
	}))
}

// Namespace makes one and returns its name. ok is false where the server has none.
func (s *Server) Namespace(t testing.TB) (name string, ok bool) {
	t.Helper()
	name = s.Prefix() + "space"
	_, err := s.Root(t).Logical().WriteWithContext(t.Context(), "sys/namespaces/"+name, nil)
	if refused, is := errors.AsType[*api.ResponseError](err); is && refused.StatusCode == http.StatusNotFound {
		return "", false
	}
	check(t, err)
	return name, true
}
