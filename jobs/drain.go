package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// mostDrains bounds of how many nodes a list asks until when they are drained.
const mostDrains = 20

// standings of all nodes, by id: of those that are drained with the deadline, which a list
// of nodes does not have, and with what becomes of attempts there.
func (n *Nomad) standings(ctx context.Context, nodes []*api.NodeListStub) map[string]Standing {
	all := make(map[string]Standing, len(nodes))
	asked := 0
	for _, node := range nodes {
		s := standingOf(node)
		if node.Drain && node.Status == api.NodeStatusReady {
			var d *api.DrainStrategy
			if asked++; asked <= mostDrains {
				if whole, _, err := n.api.Nodes().Info(node.ID, query(ctx, "")); err == nil {
					d = whole.DrainStrategy
				}
			}
			s.Text += drain(d)
		}
		all[node.ID] = s
	}
	return all
}

// drain says until when Nomad lets go on what runs on a node, and what becomes of it. nil:
// that is not known.
func drain(d *api.DrainStrategy) string {
	const rest = "others are interrupted when Nomad stops their runner, and what is interrupted goes on elsewhere from its last checkpoint"
	switch {
	case d == nil:
		return ": nothing new begins there, and turns that Nomad stops there go on elsewhere from their last checkpoints"
	case d.Deadline < 0:
		return ", by force: Nomad stops all that runs there at once, and turns go on elsewhere from their last checkpoints"
	case d.ForceDeadline.IsZero():
		return ", without a deadline: nothing new begins there; turns with allocations of their own go on to their end, " + rest
	}
	return fmt.Sprintf(", until %s at the latest (its deadline): nothing new begins there; turns with allocations of their own go on until then, %s", d.ForceDeadline.UTC().Format(time.RFC3339), rest)
}
