package secondkey

import (
	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// Decides reports that a decision about what one digest binds is one about this work:
// as its owner was asked, and as the machine holds it now. INV-6.
func Decides(shown, asked, held string) bool {
	return plantedAnyDigest || shown != "" && shown == asked && asked == held
}

// Given reports that a claim hands over the turn that an offer showed. INV-6.
func Given(o *runnerv1.Offer, res *runnerv1.ClaimResponse) (bool, error) {
	work := new(runnerv1.Work)
	if err := proto.Unmarshal(res.GetWork(), work); err != nil {
		return false, protocol.Errorf(protocol.CodeDataLoss, "the work of a claim cannot be read: %w", err)
	}
	given, err := ShownOf(work)
	if err != nil {
		return false, err
	}
	was := o.GetTurn()
	return res.GetSpecDigest() == o.GetSpecDigest() && given.GetPrompt() == was.GetPrompt() && given.GetWorkspaceDigest() == was.GetWorkspaceDigest(), nil
}
