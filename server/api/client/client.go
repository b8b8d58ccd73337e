package client

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1/apiv1connect"
)

// Config names a server and who calls it.
type Config struct {
	// URL of the public API, such as http://127.0.0.1:7400.
	URL string
	// Token of the principal, "bvt_" and 52 letters and digits. Empty: none is
	// sent, and only a server's refusal comes back.
	Token string
	// TLS of an https URL; nil: the system's roots.
	TLS *tls.Config
	// HTTP replaces the transport, for tests and in-process use.
	HTTP connect.HTTPClient
	// Retries after a first refusal; zero: 3, negative: none.
	Retries int
	// LostFunc is told each time that a watch lost its connection, or could not
	// make one, and will try again. It may be nil.
	LostFunc func(err error)
}

// Client has one field a service of the API.
type Client struct {
	Sessions    apiv1connect.SessionServiceClient
	Turns       apiv1connect.TurnServiceClient
	Events      apiv1connect.EventServiceClient
	Approvals   apiv1connect.ApprovalServiceClient
	Artifacts   apiv1connect.ArtifactServiceClient
	Agents      apiv1connect.AgentServiceClient
	Principals  apiv1connect.PrincipalServiceClient
	Runners     apiv1connect.RunnerAdminServiceClient
	Grants      apiv1connect.GrantServiceClient
	Credentials apiv1connect.CredentialServiceClient
	Operations  apiv1connect.OperationsServiceClient
	Ledger      apiv1connect.LedgerServiceClient

	http connect.HTTPClient
	lost func(error)
}

// maxMessageBytes is the server's bound on one message.
const maxMessageBytes = 4 << 20

// New makes a client; it sends nothing yet.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument,
			"%q is not the address of a server: write it as %s, or log in again with bivouac login %s --token-file FILE", c.URL, meant(c.URL), meant(c.URL))
	}
	if u.Scheme == "http" && c.Token != "" && c.HTTP == nil && !loopback(u.Hostname()) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument,
			"a token must not cross a network in the clear: use https for %s", u.Host)
	}
	hc := c.HTTP
	if hc == nil {
		hc = &http.Client{Transport: transport(c.TLS)}
	}
	if c.Retries == 0 {
		c.Retries = 3
	}
	if c.LostFunc == nil {
		c.LostFunc = func(error) {}
	}
	base := u.Scheme + "://" + u.Host
	opts := []connect.ClientOption{
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithSendMaxBytes(maxMessageBytes),
		connect.WithInterceptors(caller{token: c.Token, base: base, retries: c.Retries}),
	}
	return &Client{
		Sessions:    apiv1connect.NewSessionServiceClient(hc, base, opts...),
		Turns:       apiv1connect.NewTurnServiceClient(hc, base, opts...),
		Events:      apiv1connect.NewEventServiceClient(hc, base, opts...),
		Approvals:   apiv1connect.NewApprovalServiceClient(hc, base, opts...),
		Artifacts:   apiv1connect.NewArtifactServiceClient(hc, base, opts...),
		Agents:      apiv1connect.NewAgentServiceClient(hc, base, opts...),
		Principals:  apiv1connect.NewPrincipalServiceClient(hc, base, opts...),
		Runners:     apiv1connect.NewRunnerAdminServiceClient(hc, base, opts...),
		Grants:      apiv1connect.NewGrantServiceClient(hc, base, opts...),
		Credentials: apiv1connect.NewCredentialServiceClient(hc, base, opts...),
		Operations:  apiv1connect.NewOperationsServiceClient(hc, base, opts...),
		Ledger:      apiv1connect.NewLedgerServiceClient(hc, base, opts...),
		http:        hc,
		lost:        c.LostFunc,
	}, nil
}

// Close lets idle connections go.
func (c *Client) Close() {
	if h, ok := c.http.(*http.Client); ok {
		h.CloseIdleConnections()
	}
}

func transport(conf *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       conf,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   5 * time.Second,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       30 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// meant is the address of a person who left out a part of it: beyond this machine a
// server speaks TLS.
func meant(text string) string {
	const example = "http://127.0.0.1:" + apiPort
	if _, after, ok := strings.Cut(text, "://"); ok {
		text = after
	}
	text, _, _ = strings.Cut(text, "/")
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), apiPort
	}
	scheme := "https"
	if loopback(host) {
		scheme = "http"
	}
	address := scheme + "://" + net.JoinHostPort(host, port)
	if u, err := url.Parse(address); err != nil || u.Hostname() != host || host == "" || strings.ContainsAny(host, " \t\r\n%") {
		return example
	}
	return address
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
