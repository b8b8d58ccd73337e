package secondkey_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/edge/runtime/runtimev1"
)

// INV-6: a decision is about what was shown, what was asked, and what the machine
// holds, which are one.
func TestDecidesIsAboutOneWork(t *testing.T) {
	for _, c := range []struct {
		shown, asked, held string
		want               bool
	}{
		{"sha256:1", "sha256:1", "sha256:1", true},
		{"sha256:2", "sha256:1", "sha256:1", false},
		{"sha256:1", "sha256:1", "sha256:2", false},
		{"sha256:1", "sha256:2", "sha256:1", false},
		{"", "", "", false},
	} {
		if got := secondkey.Decides(c.shown, c.asked, c.held); got != c.want {
			t.Errorf("a decision about %q, asked %q, held %q: %v", c.shown, c.asked, c.held, got)
		}
	}
}

// INV-6: a claim that hands over another turn than the offer showed is seen.
func TestGivenIsWhatWasShown(t *testing.T) {
	work := func(prompt, workspace string) []byte {
		spec, err := proto.Marshal(&runtimev1.Spec{Messages: []*runtimev1.Message{{Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: prompt}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(&runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{Spec: spec, WorkspaceDigest: workspace}}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	offer := &runnerv1.Offer{SpecDigest: "sha256:1", Turn: &runnerv1.ShownTurn{Prompt: "mend it", WorkspaceDigest: "sha256:w"}}
	for name, c := range map[string]struct {
		digest string
		work   []byte
		want   bool
	}{
		"what was shown":    {"sha256:1", work("mend it", "sha256:w"), true},
		"another digest":    {"sha256:2", work("mend it", "sha256:w"), false},
		"another prompt":    {"sha256:1", work("delete it", "sha256:w"), false},
		"another workspace": {"sha256:1", work("mend it", "sha256:v"), false},
	} {
		if got, err := secondkey.Given(offer, &runnerv1.ClaimResponse{SpecDigest: c.digest, Work: c.work}); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := secondkey.Given(offer, &runnerv1.ClaimResponse{SpecDigest: "sha256:1", Work: []byte{0xff}}); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("unreadable work: %v", err)
	}
}
