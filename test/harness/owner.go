package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"bivouac/edge"
)

// AwaitQuestion waits until something waits for the owner of the machine.
func (e *Edge) AwaitQuestion() (q edge.Question) {
	e.w.t.Helper()
	e.w.Until("the owner of "+e.Name+" is asked", 5*time.Minute, func() bool {
		for _, q = range e.daemon.Questions() {
			return true
		}
		return false
	})
	return q
}

// Questions that wait for the owner.
func (e *Edge) Questions() []edge.Question { return e.daemon.Questions() }

// Turn the owner's second key, over the local control socket.
func (e *Edge) Turn(d edge.Decision) error {
	e.w.t.Helper()
	body, err := json.Marshal(d)
	e.w.must(err)
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.control.Dial(ctx) }}
	res, err := (&http.Client{Transport: transport}).Post("http://bivouac-edge/decide", "application/json", bytes.NewReader(body))
	e.w.must(err)
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var no struct{ Code, Message string }
	e.w.must(json.NewDecoder(res.Body).Decode(&no))
	return errors.New(no.Code + ": " + no.Message)
}

// Owner is the user of every machine's operating system who decides there.
const Owner = "owner"
