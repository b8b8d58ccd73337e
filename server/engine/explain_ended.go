package engine

import (
	"strings"

	"bivouac/edge/runtime/loop"
	"bivouac/server/session"
	"bivouac/server/store"
)

// agentName stands in a command for the agent of the turn, and turnID for the turn.
const (
	agentName = "AGENT"
	turnID    = "TURN"
)

// Commands that are of use after more than one reason.
const (
	tryDoctor  = "bivouac doctor  (of each model route: whether its provider can be reached, and took the last key)"
	tryGrant   = "bivouac grant create --agent " + agentName + "  (by an admin: it allows the agent again)"
	tryAnother = "bivouac chat --new --agent " + agentName + ", or bivouac run --agent " + agentName + " --workspace DIR  (a session of its own)"
	tryEvents  = "bivouac events " + turnID + "  (what happened, call by call)"
	tryLimits  = "bivouac agents show " + agentName + " > agent.hcl  (its limits: raise them, and bivouac agents apply agent.hcl)"
	tryMachine = "bivouac edge list  (which machines there are, and why each takes no work)"
)

// tryAfter has the commands that change something after a turn ended for a reason.
// A reason that is not here, such as a person's own denial, has nothing to mend.
var tryAfter = map[string][]string{
	loop.ReasonModelAuth:       {tryDoctor, "bivouac credential set NAME  (where the provider refused its key)", tryGrant},
	loop.ReasonModelRefused:    {tryEvents, tryDoctor},
	loop.ReasonModelNotFound:   {"bivouac agents show " + agentName + "  (its route: broker.hcl must have a model block of that name)", tryDoctor},
	loop.ReasonModelAnswer:     {tryEvents, tryDoctor},
	loop.ReasonModelFailed:     {tryDoctor, "bivouac-broker doctor  (where the broker runs)"},
	loop.ReasonUnavailable:     {tryDoctor, "bivouac-broker doctor  (where the broker runs)"},
	loop.LimitModelCalls:       {tryEvents, tryLimits},
	loop.LimitToolCalls:        {tryEvents, tryLimits},
	loop.LimitCorrections:      {tryEvents, tryLimits},
	loop.LimitTokens:           {tryLimits},
	loop.LimitCost:             {tryLimits},
	loop.ReasonMaxOutputTokens: {tryLimits},
	loop.LimitWall:             {tryEvents, tryLimits},
	reasonQueueDeadline:        {tryMachine, "bivouac doctor"},
	reasonNotPlaced:            {tryMachine, "bivouac doctor"},
	reasonInterrupted:          {tryMachine, "bivouac-edge doctor  (on the machine where it ran)"},
	reasonGrant:                {tryGrant, tryAnother},
	loop.ReasonAuthority:       {tryMachine, "bivouac grant list"},
	"runner_revoked":           {"bivouac edge invite --name NAME  (it joins again with the code)"},
	"principal_disabled":       {"bivouac principal list  (by an admin)"},
	"session_revoked":          {tryAnother},
	reasonSessionClosed:        {tryAnother},
	reasonEnded:                {tryAnother},
	"session_expired":          {tryAnother},
	"instance_recreated":       {tryAnother},
	reasonRestored:             {"bivouac unknown  (what may have happened)", tryAnother},
}

// remediesOf an ended turn, with its own names in them.
func remediesOf(tx *store.Tx, t session.Turn) ([]string, error) {
	commands := tryAfter[t.Reason]
	if t.State == session.Completed || len(commands) == 0 {
		return nil, nil
	}
	s, err := tx.Session(t.Session)
	if err != nil {
		return nil, err
	}
	own := make([]string, len(commands))
	for i, c := range commands {
		own[i] = strings.NewReplacer(agentName, s.Agent, turnID, t.ID.String()).Replace(c)
	}
	return own, nil
}
