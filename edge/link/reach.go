package link

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// Path is what one transport of an address was seen to do.
type Path struct {
	Transport string // HTTP3, over UDP, or HTTP2, over TCP
	// Err is why it does not work; nil: the peer answered, and is who it should be.
	Err  error
	Took time.Duration
	// Date is the peer's clock, to the second; zero: it did not say.
	Date time.Time
}

// Reach tries both transports of cfg's address, each alone and for at most
// DialTimeout, and asks the peer for nothing but its time. UDP comes first.
func Reach(ctx context.Context, cfg Config) (paths [2]Path, err error) {
	c, err := NewClient(cfg)
	if err != nil {
		return paths, err
	}
	defer c.Close()
	dial := []func(context.Context) (*conn, error){c.dialQUIC, c.dialTCP}
	var wg sync.WaitGroup
	for i, transport := range []string{HTTP3, HTTP2} {
		wg.Go(func() {
			paths[i] = c.try(ctx, dial[i])
			paths[i].Transport = transport
		})
	}
	wg.Wait()
	return paths, nil
}

// try dials once and sends one request for no method.
func (c *Client) try(ctx context.Context, dial func(context.Context) (*conn, error)) (p Path) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	start := time.Now()
	conn, err := dial(ctx)
	p.Took = time.Since(start)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = protocol.Errorf(protocol.CodeUnavailable, "no answer within %s", c.cfg.DialTimeout)
		}
		p.Err = err
		return p
	}
	defer conn.close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/", nil)
	if err != nil {
		p.Err = err
		return p
	}
	res, err := conn.roundTrip(req)
	if err != nil {
		p.Err = err
		return p
	}
	res.Body.Close()
	p.Date, _ = http.ParseTime(res.Header.Get("Date"))
	return p
}
