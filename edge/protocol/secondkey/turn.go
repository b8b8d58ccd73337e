package secondkey

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
)

// Turn is the kind of work that is a whole turn; device actions have their own names.
const Turn = "turn"

// ShownOf is what a machine's owner is shown of a turn, made from its work: server and
// runner make the same, so that what was shown is what is claimed. The origin is the
// server's to add.
func ShownOf(w *runnerv1.Work) (*runnerv1.ShownTurn, error) {
	spec := new(runtimev1.Spec)
	if err := proto.Unmarshal(w.GetTurn().GetSpec(), spec); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the spec of a turn cannot be read: %w", err)
	}
	shown := &runnerv1.ShownTurn{WorkspaceDigest: w.GetTurn().GetWorkspaceDigest()}
	if n := len(spec.GetMessages()); n > 0 {
		var prompt strings.Builder
		for _, b := range spec.GetMessages()[n-1].GetBlocks() {
			prompt.WriteString(b.GetText())
		}
		shown.Prompt = prompt.String()
	}
	return shown, nil
}

// turnSubject is what a decision about a turn binds. Its attempt is not claimed yet,
// so there is no fence: the digest of the work names everything that a claim brings.
type turnSubject struct {
	Attempt         string `json:"attempt"`
	Runner          string `json:"runner"`
	SpecDigest      string `json:"spec_digest"`
	PromptDigest    string `json:"prompt_digest"`
	WorkspaceDigest string `json:"workspace_digest"`
}

// TurnDigest of one offered turn, on one machine.
func TurnDigest(r protocol.RunnerID, o *runnerv1.Offer) string {
	b, err := canonical.Marshal(turnSubject{
		Attempt: o.GetAttemptId(), Runner: r.String(), SpecDigest: o.GetSpecDigest(),
		PromptDigest: canonical.Digest([]byte(o.GetTurn().GetPrompt())), WorkspaceDigest: o.GetTurn().GetWorkspaceDigest(),
	})
	if err != nil {
		return "" // only for text that is no UTF-8, which protobuf refuses
	}
	return canonical.Digest(b)
}
