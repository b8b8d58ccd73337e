package client

import (
	"encoding/json"
	"net"
	"net/url"
	"time"

	"bivouac/edge/protocol"
)

// CheckAddress refuses an address to which a token would travel in clear.
func CheckAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Path != "" && u.Path != "/") {
		return protocol.Errorf(protocol.CodeInvalidArgument, "address %q is not of the form https://host:port", address)
	}
	switch ip := net.ParseIP(u.Hostname()); {
	case u.Scheme == "https":
	case u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()):
	case u.Scheme == "http":
		return protocol.Errorf(protocol.CodeInvalidArgument, "address %q: only https leaves this machine, a token would travel in clear", address)
	default:
		return protocol.Errorf(protocol.CodeInvalidArgument, "address %q: only https, and http on loopback", address)
	}
	return nil
}

// Text of an answer's field; empty where it is none.
func Text(v any) string {
	s, _ := v.(string)
	return s
}

// Flag of an answer's field.
func Flag(v any) bool {
	b, _ := v.(bool)
	return b
}

// Number of an answer's field; zero where it is none.
func Number(v any) int64 {
	switch n := v.(type) {
	case json.Number:
		i, err := n.Int64()
		if err != nil {
			f, _ := n.Float64() // zero where it is no number
			return int64(f)
		}
		return i
	case float64:
		return int64(n)
	case int:
		return int64(n)
	}
	return 0
}

// Seconds of an answer's field.
func Seconds(v any) time.Duration { return time.Duration(Number(v)) * time.Second }

// Texts of an answer's field.
func Texts(v any) (out []string) {
	list, _ := v.([]any)
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// Map of an answer's field; never nil.
func Map(v any) map[string]any {
	if m, ok := v.(map[string]any); ok && m != nil {
		return m
	}
	return map[string]any{}
}

// Time of an answer's field; zero where it is none or empty.
func Time(v any) time.Time {
	t, err := time.Parse(time.RFC3339Nano, Text(v))
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
