package cli

import (
	"bytes"
	"strings"
	"testing"

	"bivouac/server/api/apiv1"
)

// The command that an owner types is whole where the directory of the runner is known
// here; of another machine's it says that there may be one to name.
func TestOwnersCommandIsWhole(t *testing.T) {
	q := &apiv1.OwnerQuestion{AttemptId: "att_1", Work: "files.write", RunnerName: "laptop", ApproveThere: "bivouac-edge approve att_1", DenyThere: "bivouac-edge deny att_1"}
	for state, want := range map[string]string{
		"":              "bivouac-edge approve att_1  |  bivouac-edge deny att_1  (with --state DIR where",
		"/srv/dev/edge": "bivouac-edge approve att_1 --state /srv/dev/edge  |  bivouac-edge deny att_1 --state /srv/dev/edge\n",
		"/srv/a b/edge": "bivouac-edge approve att_1 --state '/srv/a b/edge'",
	} {
		var out bytes.Buffer
		showOwnerQuestion(&out, q, state)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q: %s", state, out.String())
		}
	}
}
