package provider

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// maxRetryAfter bounds what a provider may ask for.
const maxRetryAfter = 10 * time.Minute

// statusError turns a refusal into our code. The provider's words are clipped,
// cleaned and redacted.
func (c *Client) statusError(res *http.Response, r *secret.Redactor) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxError)) // what came is enough
	said := providerText(body, r)
	route := c.cfg.Route
	after := retryAfter(res.Header.Get("Retry-After"), time.Now())
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		if c.cfg.Credential == "" {
			return protocol.Errorf(protocol.CodeUnauthenticated,
				"the provider of model route %s wants a key (status %d): name one as credential in broker.hcl", route, code)
		}
		return protocol.Errorf(protocol.CodeUnauthenticated,
			"the provider of model route %s refuses its key (status %d): store a good one with: bivouac credential set %s", route, code, c.cfg.Credential)
	case code == http.StatusTooManyRequests:
		e := protocol.Errorf(protocol.CodeRateLimited, "the provider of model route %s asks to slow down: %s", route, said)
		e.RetryAfter = after
		return e
	case code == http.StatusRequestTimeout, code >= 500:
		e := protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s has a fault (status %d): %s", route, code, said)
		e.RetryAfter = after
		return e
	case code == http.StatusNotFound:
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the provider of model route %s knows no such model or address: check base_url and model in broker.hcl: %s", route, said)
	case code >= 300 && code < 400:
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the provider of model route %s redirects (status %d), which is not followed: put the final address into broker.hcl", route, code)
	case code >= 400:
		return protocol.Errorf(protocol.CodeInvalidArgument, "the provider of model route %s refuses the request (status %d): %s", route, code, said)
	}
	return garbage(c.cfg.Route, c.format.speaks, "it answered with status %d", res.StatusCode)
}

// providerText is the message of an error body, safe to show.
func providerText(body []byte, r *secret.Redactor) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"message"`
	}
	text := ""
	if json.Unmarshal(body, &e) == nil {
		text = e.Error.Message + e.Message
	}
	if text == "" {
		return "it gave no reason"
	}
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, r.Text(text))
	return clip(r.Decoded(text))
}

// retryAfter reads seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(header string, now time.Time) time.Duration {
	if header == "" {
		return 0
	}
	var d time.Duration
	if secs, err := strconv.ParseInt(header, 10, 32); err == nil {
		d = time.Duration(secs) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxRetryAfter)
}
