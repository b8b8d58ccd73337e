package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Upstream is a model provider that does nothing but note, by its own clock, when
// requests came and answers ended. Prompts say what it does:
//
//	quick        answers at once
//	hold NAME    answers a piece every tenth of a second until nobody listens
//	hold slow …  a piece every second: what is measured is its end, not what it carries
type Upstream struct {
	URL string

	mu   sync.Mutex // guards below
	came map[string][]time.Time
	gone map[string][]time.Time
	open map[string]int
}

func startUpstream(ctx context.Context, g *errgroup.Group) (*Upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &Upstream{URL: "http://" + ln.Addr().String(), came: map[string][]time.Time{}, gone: map[string][]time.Time{}, open: map[string]int{}}
	server := &http.Server{Handler: u, ReadHeaderTimeout: 10 * time.Second}
	g.Go(func() error {
		defer context.AfterFunc(ctx, func() { server.Close() })()
		return server.Serve(ln)
	})
	return u, nil
}

// ServeHTTP answers Chat Completions.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages []struct{ Content string }
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &in) != nil || len(in.Messages) == 0 {
		http.Error(w, "no chat completion", http.StatusBadRequest)
		return
	}
	prompt := in.Messages[len(in.Messages)-1].Content
	defer u.note(prompt)()
	w.Header().Set("Content-Type", "text/event-stream")
	if !strings.HasPrefix(prompt, "hold") {
		u.piece(w, stamp())
		fmt.Fprint(w, `data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`+"\n\ndata: [DONE]\n\n") // the client went
		return
	}
	every := 100 * time.Millisecond
	if strings.HasPrefix(prompt, "hold slow") {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for u.piece(w, stamp()+" ") {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// stamp is the upstream's clock, as it goes out.
func stamp() string { return strconv.FormatInt(time.Now().UnixNano(), 10) }

func (u *Upstream) piece(w http.ResponseWriter, text string) bool {
	if _, err := fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", text); err != nil {
		return false
	}
	return http.NewResponseController(w).Flush() == nil
}

// note a request; the returned function notes the end of its answer.
func (u *Upstream) note(prompt string) (ended func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.came[prompt] = append(u.came[prompt], time.Now())
	u.open[prompt]++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.gone[prompt] = append(u.gone[prompt], time.Now())
		u.open[prompt]--
	}
}

// Open answers to a prompt that go on.
func (u *Upstream) Open(prompt string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.open[prompt]
}

// Ended are the instants at which answers to a prompt ended.
func (u *Upstream) Ended(prompt string) []time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]time.Time(nil), u.gone[prompt]...)
}

// Last arrival of a request with a prompt.
func (u *Upstream) Last(prompt string) (last time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if all := u.came[prompt]; len(all) > 0 {
		last = all[len(all)-1]
	}
	return last
}
