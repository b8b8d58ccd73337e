package policies

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var weather = Credential{Tenant: "ten_01m8n7mng1x16gsh7mgchdm30b", Name: "weather.v2"}

// The files are what is applied, where nothing is named otherwise.
func TestFilesAreThePolicies(t *testing.T) {
	d := NamesOf(DefaultPrefix)
	for file, text := range map[string]string{"bivouac-broker.hcl": d.Broker(), "bivouac-grant.hcl": d.Grant()} {
		if b, err := os.ReadFile(file); err != nil || string(b) != text {
			t.Errorf("%s is not what is applied: %v", file, err)
		}
	}
	files, err := filepath.Glob("*.hcl")
	if err != nil || len(files) != 8 {
		t.Errorf("%v %v", files, err)
	}
	if use := d.Use(Opened{Credential: weather}); !strings.Contains(use, `path "bivouac-credentials/data/ten_01m8n7mng1x16gsh7mgchdm30b/weather.v2"`) || d.UsePolicy(weather) != "bivouac-use-ten_01m8n7mng1x16gsh7mgchdm30b-weather.v2" {
		t.Error(use)
	}
}

// A second deployment shares no name with the first.
func TestPrefix(t *testing.T) {
	n := NamesOf("second")
	n.Transit = "keys/two"
	for _, text := range []string{n.Broker(), n.Grant(), n.Use(Opened{Credential: weather}), n.Routes([]Credential{weather})} {
		for line := range strings.SplitSeq(text, "\n") {
			if strings.Contains(line, DefaultPrefix+"-") || strings.Contains(line, `"second-transit`) {
				t.Error(line)
			}
		}
	}
	if !strings.Contains(n.Broker(), `"keys/two/decrypt/u-*"`) || !strings.Contains(n.Grant(), `"second-use-*"`) {
		t.Error(n.Broker(), n.Grant())
	}
}

func TestRoutes(t *testing.T) {
	d := NamesOf(DefaultPrefix)
	other := Credential{weather.Tenant, "a"}
	text := d.Routes([]Credential{weather, other, weather})
	if strings.Count(text, "path ") != 2 || text != d.Routes([]Credential{other, weather}) || strings.Contains(text, "TENANT") {
		t.Error(text)
	}
	if strings.Contains(d.Routes(nil), "path ") {
		t.Error(d.Routes(nil))
	}
}
