package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
	"bivouac/server/broker"
	"bivouac/server/broker/protocol/brokerv1"
)

// A broker says what it stands on: what can be reached is reached without a
// credential, what cannot is named with what mends it.
func TestDiagnose(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		levels := func() map[string]*brokerv1.Finding {
			t.Helper()
			res, err := server.broker.Diagnose(t.Context(), &brokerv1.DiagnoseRequest{})
			w.must(err)
			out := map[string]*brokerv1.Finding{}
			for _, f := range res.GetFindings() {
				out[f.GetCheck()] = f
			}
			return out
		}
		all := levels()
		for check, want := range map[string]string{
			"feed": "ok", "caps": "ok", "disk": "ok", "provider.main": "ok", "provider.claude": "ok", "tool.weather": "ok", "price.unpriced": "warning",
			// https to a host that the world does not have
			"provider.public": "problem", "tool.inside": "problem",
		} {
			if f := all[check]; f.GetLevel() != want || want != "ok" && f.GetMend() == "" {
				t.Errorf("%s: %v, want %s", check, f, want)
			}
		}
		if got := w.tools.requests(); len(got) != 0 {
			t.Errorf("a doctor sent %v", got)
		}
		w.feed.silence(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if f := levels()["feed"]; f.GetLevel() != "problem" || !strings.Contains(f.GetMend(), "bivouac-broker run --server") {
			t.Errorf("a silent feed: %v", f)
		}
	})
}

func TestExaminePaths(t *testing.T) {
	dir := t.TempDir()
	look := func() finding.Finding {
		r := finding.From("broker")
		broker.ExaminePaths(r, dir)
		return r.All[0]
	}
	if f := look(); f.Level != finding.Warning || !strings.Contains(f.Mend, "bivouac explain") {
		t.Errorf("no entry: %+v", f)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.hcl", "Kind = \"service-intentions\"\nName = \"model-main\"\nSources = [{ Name = \"agent-assistant\", Action = \"allow\" }]\n")
	if f := look(); f.Level != finding.OK || !strings.Contains(f.What, "1 entries") {
		t.Errorf("one entry: %+v", f)
	}
	write("bad.hcl", "Kind = \"service-intentions\"\nName = \n")
	if f := look(); f.Level != finding.Problem || !strings.Contains(f.What, "bad.hcl:2") {
		t.Errorf("a broken one: %+v", f)
	}
	dir += "/none"
	if f := look(); f.Level != finding.Problem || !strings.Contains(f.Mend, "mkdir -p "+dir) {
		t.Errorf("no directory: %+v", f)
	}
}
