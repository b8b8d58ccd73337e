// Package secondkey is what a machine's owner decides on when the second key is
// asked for: the digest that binds a decision to one attempt of one action, and the
// words for decisions. Runner and server compute the same digest, each from what it
// has itself. Pure; it refuses everything else.
package secondkey

import (
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

// Decisions.
const (
	Approved = "approved"
	Denied   = "denied"
	Expired  = "expired"
)

// subject is what a decision binds. Fences are text: they pass 2^53 (RFC 8785).
type subject struct {
	Attempt         string `json:"attempt"`
	Fence           string `json:"fence"`
	Runner          string `json:"runner"`
	Action          string `json:"action"`
	Tool            string `json:"tool"`
	ArgumentsDigest string `json:"arguments_digest"`
	PreImageDigest  string `json:"pre_image_digest"`
	ApprovalDigest  string `json:"approval_digest"`
}

// Digest of one device action under one fence, on one machine. The digest of the
// arguments is computed, not believed.
func Digest(a protocol.AttemptID, f protocol.Fence, r protocol.RunnerID, w *runnerv1.DeviceWork) string {
	b, err := canonical.Marshal(subject{
		Attempt: a.String(), Fence: f.String(), Runner: r.String(), Action: w.GetActionId(), Tool: w.GetAction(),
		ArgumentsDigest: canonical.Digest([]byte(w.GetArguments())), PreImageDigest: w.GetPreImageDigest(),
		ApprovalDigest: w.GetApprovalDigest(),
	})
	if err != nil {
		return "" // only for text that is no UTF-8, which protobuf refuses
	}
	return canonical.Digest(b)
}
