package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bivouac/server/broker/provider"
)

// Overhead compares calls through the broker with the same requests made directly,
// one after the other, so that both see the same machine.
type Overhead struct {
	// Direct and Through are whole calls; FirstDirect and FirstThrough the way of the
	// first piece, from the upstream's write to the caller's hand.
	Direct, Through           []time.Duration
	FirstDirect, FirstThrough []time.Duration
}

// Overhead of n calls each.
func (r *Rig) Overhead(ctx context.Context, n int) (Overhead, error) {
	var out Overhead
	c, err := r.Server()
	if err != nil {
		return out, err
	}
	defer c.Close() // its work is over
	base, err := url.Parse(r.Upstream.URL + "/v1")
	if err != nil {
		return out, err
	}
	p, err := provider.New(provider.Config{Base: base})
	if err != nil {
		return out, err
	}
	body, err := p.Encode("measured", request("quick"))
	if err != nil {
		return out, err
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for i := range n + n/10 {
		began := time.Now()
		first, err := direct(ctx, client, r.Upstream.URL, body)
		if err != nil {
			return out, err
		}
		whole := time.Since(began)
		began = time.Now()
		var way time.Duration
		if _, err = c.Call(ctx, Work{Agent: Agent}, "quick", func(text string) { way = since(text) }); err != nil {
			return out, err
		}
		if i < n/10 {
			continue // connections are made, code is warm
		}
		out.Through, out.FirstThrough = append(out.Through, time.Since(began)), append(out.FirstThrough, way)
		out.Direct, out.FirstDirect = append(out.Direct, whole), append(out.FirstDirect, first)
	}
	return out, nil
}

// since the instant that a piece carries.
func since(text string) time.Duration {
	ns, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0
	}
	return time.Since(time.Unix(0, ns))
}

// direct is one request without a broker, read to its end.
func direct(ctx context.Context, client *http.Client, base string, body []byte) (first time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the upstream answered %s", res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if ok && first == 0 && json.Unmarshal([]byte(data), &c) == nil && len(c.Choices) > 0 {
			first = since(c.Choices[0].Delta.Content)
		}
	}
	return first, lines.Err()
}
