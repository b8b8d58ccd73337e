package engine

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/session"
	"bivouac/server/store"
)

const (
	// didNotRun begins what a model reads of a call that was refused before it left.
	didNotRun = "It did not run: "
	// maxRefused are the refusals that one explanation names.
	maxRefused = 8
)

// explainRefused names the calls of an ended turn that the broker refused before they left,
// such as of a tool whose credential is gone, each with what mends it: a turn ends well all
// the same, and its model says of it what it likes. No answer of an upstream is read as one.
func explainRefused(tx *store.Tx, t session.Turn, x *Explanation) error {
	actions, err := tx.ActionsOfTurn(t.ID)
	var said []string
	for _, a := range actions {
		var r runtimev1.ToolResult
		if a.Evidence != refusedUnsent || proto.Unmarshal(a.Result, &r) != nil {
			continue
		}
		why, ok := strings.CutPrefix(r.GetText(), didNotRun)
		line := fmt.Sprintf("\n%s did not run: %s", a.Tool, why)
		if ok && len(said) < maxRefused && !slices.Contains(said, line) {
			said = append(said, line)
		}
	}
	x.WaitingFor += strings.Join(said, "")
	return err
}
