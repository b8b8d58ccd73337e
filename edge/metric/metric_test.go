package metric

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func scrape(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v\n%s", res.Status, err, b)
	}
	return string(b)
}

func TestPage(t *testing.T) {
	p := New("edge", "v1")
	refused := p.Counter("refused_total", "Refusals.", "code", "denied", "late")
	waits := p.Histogram("wait_seconds", "Waits.", 1, 10)
	var problem error
	p.Gauges("store", func(ctx context.Context) ([]Sample, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("a reading without an end")
		}
		return []Sample{{"depth", "", 7}, {"links", "http/3", 2}, {"links", "carrier pigeon", 1}, {"links", "smoke", 1}, {"undeclared", "", 1}}, problem
	}, Gauge{Name: "depth", Help: "Depth."}, Gauge{Name: "links", Help: "Links.", Label: "transport", Allowed: []string{"http/2", "http/3"}})

	l, err := Listen(t.Context(), "127.0.0.1:0", "--metrics")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	url := "http://" + l.Addr().String() + Path

	// What was never counted is zero, not absent.
	if text := scrape(t, url); !strings.Contains(text, `refused_total{code="denied"} 0`) || !strings.Contains(text, `bivouac_build_info{process="edge",version="v1"} 1`) {
		t.Errorf("before anything happened:\n%s", text)
	}
	refused.Add("denied")
	refused.Add("my password is swordfish") // by somebody else's mouth
	waits.Observe(3 * time.Second)
	waits.Observe(-time.Second)
	text := scrape(t, url)
	for _, want := range []string{
		`refused_total{code="denied"} 1`, `refused_total{code="other"} 1`, `refused_total{code="late"} 0`,
		`wait_seconds_bucket{le="1"} 1`, `wait_seconds_count 2`, `depth 7`,
		`links{transport="http/3"} 2`, `links{transport="other"} 2`, `bivouac_readable{part="store"} 1`, "go_goroutines",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, not := range []string{"swordfish", "pigeon", "undeclared"} {
		if strings.Contains(text, not) {
			t.Errorf("the page says %q", not)
		}
	}
	// A part that cannot be read is said so, and the page stands.
	problem = errors.New("the store is gone")
	if text := scrape(t, url); !strings.Contains(text, `bivouac_readable{part="store"} 0`) || strings.Contains(text, "gone") {
		t.Errorf("without its store:\n%s", text)
	}
	// Nothing else is served.
	res, err := http.Get("http://" + l.Addr().String() + "/debug/pprof/")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %s", res.Status)
	}
	if _, err := Listen(t.Context(), l.Addr().String(), "--metrics"); err == nil || !strings.Contains(err.Error(), "choose another with --metrics") {
		t.Errorf("a taken port: %v", err)
	}
}
