package broker_test

import (
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	edgemetric "bivouac/edge/metric"
	"bivouac/server/broker/metric"
	"bivouac/server/capability"
)

// What the broker says no to is counted by what said it, and nothing of what was
// asked is on the page.
func TestMetrics(t *testing.T) {
	meter := metric.New("test")
	inWorldAfter(t, func(w *world) { w.meter = meter }, func(t *testing.T, w *world) {
		meter.Watch(w.broker)
		number := func(series string) float64 {
			t.Helper()
			rec := httptest.NewRecorder()
			meter.Handler().ServeHTTP(rec, httptest.NewRequest("GET", edgemetric.Path, nil))
			page := rec.Body.String()
			if strings.Contains(page, "mallory") || strings.Contains(page, "weather") || strings.Contains(page, modelKey) {
				t.Errorf("the page says who asked for what:\n%s", page)
			}
			m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(page)
			if m == nil {
				return -1
			}
			n, err := strconv.ParseFloat(m[1], 64)
			w.must(err)
			return n
		}
		server := w.as(w.serverCert)
		for _, refused := range []struct {
			by     string
			change func(*capability.Claims)
		}{
			{"authority", func(c *capability.Claims) { c.Audience = "other" }},
			{"policy", func(c *capability.Claims) { c.Models = nil }},
			{"cap", func(c *capability.Claims) { c.TenantName = "capped" }},
			{"path", func(c *capability.Claims) { c.Agent = "mallory" }},
			{"boundary", func(c *capability.Claims) { c.DataBoundary = "secret" }},
			{"budget", func(c *capability.Claims) { c.SliceCeiling = 500 }},
		} {
			series := `bivouac_broker_denials_total{by="` + refused.by + `"}`
			if n := number(series); n != 0 {
				t.Errorf("%s is %v before anything happened", series, n)
			}
			if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(refused.change)), "main", "hello")); err == nil {
				t.Errorf("%s: it was admitted", refused.by)
			}
			if n := number(series); n != 1 {
				t.Errorf("%s is %v, want 1", series, n)
			}
		}
		if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := invoke(t.Context(), server, w.invocation(nil, nil)); err != nil {
			t.Fatal(err)
		}
		for _, one := range []string{`bivouac_broker_model_calls_total{code="ok"}`, `bivouac_broker_tool_calls_total{code="ok"}`} {
			if n := number(one); n != 1 {
				t.Errorf("%s is %v", one, n)
			}
		}
		if age := number("bivouac_feed_age_seconds"); age < 0 || age > 1 {
			t.Errorf("the feed is %v s old", age)
		}
		w.feed.silence(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if age := number("bivouac_feed_age_seconds"); age < 4 {
			t.Errorf("after five seconds of silence the feed is %v s old", age)
		}
	})
}
