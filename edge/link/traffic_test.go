package link_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac/edge/link"
)

// A meter with named kinds has those and one more, whatever is asked for; one without
// takes kinds as they come, up to its bound.
func TestMeterIsBounded(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.Body.Close()
		_, _ = w.Write([]byte("four"))
	})
	named, free := link.NewMeter("Ask", "Tell"), link.NewMeter()
	for i := range 500 {
		for _, m := range []*link.Meter{named, free} {
			r := httptest.NewRequest(http.MethodPost, "/service/Ask"+strings.Repeat("x", i), strings.NewReader("body"))
			m.Count(answer).ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	got := named.Read()
	if len(got) != 3 || got["Ask"].Opened != 1 || got["Ask"].BytesOut != 4 || got["Tell"].Opened != 0 || got["other"].Opened != 499 || got["other"].BytesOut != 4*499 {
		t.Errorf("named: %+v", got)
	}
	got = free.Read()
	if len(got) != 65 || got["Ask"].Opened != 1 || got["other"].Opened != 500-64 {
		t.Errorf("as they come: %d kinds, other %+v", len(got), got["other"])
	}
}
