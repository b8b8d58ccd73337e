package engine

import (
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// definitions are parsed agent definitions by their digest. A digest names its
// bytes, so an entry never grows old; the oldest half goes when there are many.
type definitions struct {
	mu     sync.Mutex // guards below
	parsed map[string]policy.Agent
	order  []string
}

// maxDefinitions is how many parsed definitions are kept.
const maxDefinitions = 256

func newDefinitions() *definitions { return &definitions{parsed: map[string]policy.Agent{}} }

func (d *definitions) known(digest string) (policy.Agent, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, known := d.parsed[digest]
	return a, known
}

func (d *definitions) parse(def policy.Definition) (policy.Agent, error) {
	if a, known := d.known(def.Digest); known {
		return a, nil
	}
	a, err := policy.ParseAgent(def.Filename, def.Source)
	if err != nil {
		return a, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.order) >= maxDefinitions {
		for _, old := range d.order[:maxDefinitions/2] {
			delete(d.parsed, old)
		}
		d.order = append([]string(nil), d.order[maxDefinitions/2:]...)
	}
	if _, twice := d.parsed[def.Digest]; !twice {
		d.parsed[def.Digest] = a
		d.order = append(d.order, def.Digest)
	}
	return a, nil
}

// UnknownAgent is what everybody is told who names an agent that their tenant does
// not have.
func UnknownAgent(name string) error {
	example := "assistant"
	if name == "coder" {
		example = name
	}
	return protocol.Errorf(protocol.CodeNotFound, "agent %q not found: `bivouac agents list` shows those that exist, `bivouac agents apply FILE` adds one, "+
		"and an example to begin with is `bivouac agents example %s > %s.hcl`", name, example, example)
}

// definition reads one version of an agent, or the current one.
func (e *Engine) definition(tx *store.Tx, tenant protocol.TenantID, name, digest string) (policy.Definition, policy.Agent, error) {
	def, err := tx.Definition(tenant, name, digest)
	if notFound(err) {
		return def, policy.Agent{}, UnknownAgent(name)
	} else if err != nil {
		return def, policy.Agent{}, err
	}
	agent, err := e.agents.parse(def)
	return def, agent, err
}

// agentOf is the agent of a session that the caller sees, in the version that the
// session began with. It is read once: the digest names its bytes.
func (e *Engine) agentOf(tx *store.Tx, s session.Session) (policy.Agent, error) {
	if a, known := e.agents.known(s.AgentDigest); known {
		return a, nil
	}
	_, a, err := e.definition(tx, s.Tenant, s.Agent, s.AgentDigest)
	return a, err
}
