package client

import (
	"net"
	"net/url"
	"strings"

	"bivouac/edge/protocol"
)

// CheckAddress makes a URL of an address in one of the forms that Consul's own command
// line takes: a URL, or host:port, which is https with secure. Plain HTTP is for the
// agent of this machine alone.
func CheckAddress(address string, secure bool) (string, error) {
	bad := func(format string, args ...any) (string, error) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "address: "+format, args...)
	}
	text := address
	if !strings.Contains(text, "://") {
		text = map[bool]string{true: "https://", false: "http://"}[secure] + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "":
		return bad("%q is no address: write https://consul.example:8501, or 127.0.0.1:8500 for the agent of this machine", address)
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("%q: %s is not spoken: write https://HOST:8501, or http://127.0.0.1:8500", address, u.Scheme)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return bad("%q holds more than a host and a port", address)
	case u.Scheme == "http" && secure:
		return bad("%q is plain HTTP, and CONSUL_HTTP_SSL asks for TLS: write https://", address)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return bad("%q is plain HTTP to another machine: the token, and who may reach what, would be anybody's on the way; write https:// (port 8501), or name the agent of this machine", address)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), map[string]string{"https": "8501", "http": "8500"}[u.Scheme])
	}
	return u.Scheme + "://" + u.Host, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
