package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"bivouac/server/broker/secret"
)

// Answer as it came.
type Answer struct {
	Body []byte
	// Index of the state that was asked; zero where there is none.
	Index uint64
	// Date of the server's clock; zero where it did not say.
	Date time.Time
	// CertificateEnd of the server; zero without TLS.
	CertificateEnd time.Time

	led bool // it says that a leader is known
}

// exchange is one request and its answer on the wire, beside what the library makes of
// them.
type exchange struct {
	cas    *uint64
	answer *http.Response
	body   []byte
	// noToken is why no token could be sent.
	noToken error
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	ex, _ := ctx.Value(exchangeKey{}).(*exchange)
	return ex
}

// ask runs one request within its time. Held is how long the server may keep it.
func (c *Client) ask(ctx context.Context, what string, held time.Duration, run func(*api.QueryOptions) error) (Answer, error) {
	ex := &exchange{}
	bound, cancel := context.WithTimeout(context.WithValue(ctx, exchangeKey{}, ex), held+c.timeout)
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(bound)
	err := run(q)
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	if err != nil {
		return Answer{}, c.fault(faultOf(what, err, ex))
	}
	return ex.read(c, what)
}

// read what came, and refuse what is no answer.
func (ex *exchange) read(c *Client, what string) (Answer, error) {
	h := ex.answer.Header
	switch {
	case h.Get("X-Consul-Knownleader") == "false":
		return Answer{}, c.fault(&Fault{Kind: Leaderless, Asked: what})
	case h.Get("X-Consul-Results-Filtered-By-ACLs") == "true":
		return Answer{}, c.fault(&Fault{Kind: Refused, Asked: what, Said: "the token may see a part of the answer alone"})
	case q(h, "X-Consul-Lastcontact") > 0:
		return Answer{}, c.fault(&Fault{Kind: Leaderless, Asked: what, Said: "the answer is not of the leader"})
	}
	a := Answer{Body: ex.body, Index: q(h, "X-Consul-Index"), led: h.Get("X-Consul-Knownleader") == "true"}
	a.Date, _ = http.ParseTime(h.Get("Date"))
	if t := ex.answer.TLS; t != nil && len(t.PeerCertificates) > 0 {
		a.CertificateEnd = t.PeerCertificates[0].NotAfter
	}
	return a, nil
}

// q is a number of a header; zero where there is none that can be read.
func q(h http.Header, name string) uint64 {
	n, err := strconv.ParseUint(h.Get(name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// carrier puts the token of now into each request, bounds the answer and keeps it. What
// the library took from the environment does not leave.
type carrier struct {
	next  *http.Transport
	token func() (secret.Value, error)
}

var errTooLarge = errors.New("the answer is larger than any that is expected")

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	ex := exchangeOf(r.Context())
	r = r.Clone(r.Context())
	r.Header.Del("X-Consul-Token")
	r.Header.Del("Authorization")
	query := r.URL.Query()
	for _, name := range []string{"ns", "partition", "dc"} {
		query.Del(name)
	}
	if ex != nil && ex.cas != nil {
		query.Set("cas", strconv.FormatUint(*ex.cas, 10))
	}
	r.URL.RawQuery = query.Encode()
	if c.token != nil {
		v, err := c.token()
		if err != nil {
			if ex != nil {
				ex.noToken = err
			}
			return nil, err
		}
		r.Header.Set("X-Consul-Token", v.Reveal())
	}
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	resp.Body.Close()
	switch {
	case err != nil:
		return nil, err
	case len(body) > MaxAnswer:
		return nil, errTooLarge
	}
	if ex != nil {
		ex.answer, ex.body = resp, body
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// faultOf what went wrong.
func faultOf(what string, err error, ex *exchange) *Fault {
	var status api.StatusError
	switch {
	case ex.noToken != nil:
		return &Fault{Kind: NoToken, Asked: what, Err: ex.noToken}
	case errors.As(err, &status):
		return &Fault{Kind: kindOf(status.Code, status.Body), Asked: what, Status: status.Code, Said: oneLine(status.Body)}
	case ex.answer != nil && ex.answer.StatusCode != http.StatusOK:
		return &Fault{Kind: kindOf(ex.answer.StatusCode, string(ex.body)), Asked: what, Status: ex.answer.StatusCode, Said: oneLine(string(ex.body))}
	case ex.answer != nil && !errors.Is(err, errTooLarge):
		return &Fault{Kind: Strange, Asked: what, Said: "the answer is not Consul's"}
	}
	return &Fault{Kind: Away, Asked: what, Err: inner(err)}
}

func kindOf(status int, said string) Kind {
	has := func(text string) bool { return strings.Contains(strings.ToLower(said), text) }
	switch {
	case has("no cluster leader"), has("no path to datacenter"), has("not the leader"), has("no known consul servers"):
		return Leaderless
	case has("acl not found"), has("acl token not found"), status == http.StatusUnauthorized:
		return NoToken // Consul says so of a token that has ended, too
	case status == http.StatusForbidden || has("permission denied"):
		return Refused
	case status == http.StatusNotFound:
		return Absent
	case status == http.StatusTooManyRequests:
		return Limited
	case has("connect must be enabled"):
		return Disabled
	case status == http.StatusBadRequest || has("invalid"):
		return Invalid
	}
	return Away
}
