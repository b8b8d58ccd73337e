package edge

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"bivouac/edge/metric"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// The page says what the link uses, what runs, and that the owner paused; it
// names nobody.
func TestMetrics(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		page := m.daemon.page()
		has := func(lines ...string) {
			t.Helper()
			rec := httptest.NewRecorder()
			page.Handler().ServeHTTP(rec, httptest.NewRequest("GET", metric.Path, nil))
			text := rec.Body.String()
			for _, line := range lines {
				if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) {
					t.Errorf("the page lacks %s", line)
				}
			}
			if strings.Contains(text, m.daemon.Status().Runner.String()) {
				t.Error("the page names the runner")
			}
		}
		m.connected()
		has(`bivouac_edge_connected 1`, `bivouac_edge_transport{transport="http/3"} 1`, `bivouac_edge_transport{transport="http/2"} 0`,
			`bivouac_edge_attempts{state="running"} 0`, `bivouac_edge_paused 0`, `bivouac_edge_trouble 0`, `bivouac_edge_slots 1`,
			`bivouac_edge_certificate_seconds [1-9]\S+`, `bivouac_edge_traffic_bytes{direction="in"} [1-9]\S*`)
		turn := newAttempt()
		f.offer(turn, protocol.KindTurn, &runnerv1.Work{})
		m.await("the turn", 10*time.Second, func() bool { return m.twins.get(turn) != nil })
		has(`bivouac_edge_attempts{state="running"} 1`)
		f.stop()
		time.Sleep(time.Minute)
		has(`bivouac_edge_connected 0`, `bivouac_edge_trouble 1`)
	})
}
