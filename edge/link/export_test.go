package link

import (
	"errors"
	"net/http"
)

// ShutDown makes the current connection one that takes no new stream, as after its
// server's GOAWAY.
func (c *Client) ShutDown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.roundTrip = func(*http.Request) (*http.Response, error) {
		return nil, errors.New("http3: conn unusable: connection in graceful shutdown")
	}
}
