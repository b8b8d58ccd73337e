package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/consul"
	"bivouac/server/broker/secret"
)

// What is sent again, after a pause or with another credential, is asked about again:
// where the paths or the authority changed meanwhile it does not leave, and the answer
// that came before stands. INV-13.
func TestSentAgainIsAskedAgain(t *testing.T) {
	next, err := secret.New("another-token-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	for name, status := range map[string]int{"after a pause": http.StatusTooManyRequests, "with another credential": http.StatusUnauthorized} {
		for change, tc := range map[string]struct {
			refuse, end bool
			sent        int
		}{"nothing": {sent: 2}, "the paths": {refuse: true, sent: 1}, "the authority": {end: true, sent: 1}} {
			t.Run(name+", "+change, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					flow, end := context.WithCancelCause(t.Context())
					defer end(nil)
					d, sent, asked := destinationAt(t, "https://weather.example/api/v1/"), 0, 0
					d.cfg.Retries = 2
					d.cfg.Client = &http.Client{Transport: carriedTrip(func(r *http.Request) (*http.Response, error) {
						sent++
						code := http.StatusOK
						if sent == 1 {
							code = status
						}
						return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("[]")), Request: r}, nil
					})}
					if tc.end && status == http.StatusTooManyRequests {
						time.AfterFunc(firstPause/4, func() { end(errors.New("it was revoked")) })
					}
					r, err := d.Prepare(Call{Tool: listTool(nil), Arguments: []byte(`{"state":"open"}`)})
					if err != nil {
						t.Fatal(err)
					}
					a, err := r.Send(flow, Pass{Credential: credential(t),
						LeavesFunc: func(w *consul.Request) error {
							asked++
							if tc.refuse {
								return errors.New("the paths say no")
							}
							return nil
						},
						RenewFunc: func(context.Context) (secret.Value, []secret.Value, error) {
							if tc.end {
								end(errors.New("it was revoked"))
							}
							return next, nil, nil
						},
					})
					want := status
					if tc.sent == 2 {
						want = http.StatusOK
					}
					if err != nil || a.Status != want || sent != tc.sent || !tc.end && asked != 1 {
						t.Errorf("%+v %v, sent %d times, asked %d times", a, err, sent, asked)
					}
				})
			})
		}
	}
}
