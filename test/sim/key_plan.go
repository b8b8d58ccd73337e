package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"bivouac/edge/protocol/secondkey"
	"bivouac/server/policy"
)

// keyPlan says which machine's owner holds a second key, and over what.
type keyPlan struct {
	machine int // -1: none
	over    []string
	ttl     time.Duration
}

// planKey draws from a stream of its own: a seed without a key plays as it did
// before there were any.
func planKey(seed uint64) keyPlan {
	rng := rand.New(rand.NewPCG(seed, 2))
	if rng.IntN(5) > 1 {
		return keyPlan{machine: -1}
	}
	over := [][]string{{policy.RefWrite}, {readFile, policy.RefWrite}, {secondkey.Turn}, {secondkey.Turn, policy.RefWrite},
		{secondkey.Turn, readFile, policy.RefWrite}, {secondkey.Turn, readFile, policy.RefWrite}}
	ttl := []time.Duration{10 * time.Second, 30 * time.Second, 5 * time.Minute}
	return keyPlan{machine: rng.IntN(3), over: over[rng.IntN(len(over))], ttl: ttl[rng.IntN(len(ttl))]}
}

const readFile = "files.read"

// underKey is a chat that asks for what the key is over, so that an owner has
// something to decide.
func (s *Sim) underKey(p plan) []chat {
	if p.key.machine < 0 {
		return nil
	}
	who, number := p.key.machine/2, min(p.key.machine, p.devices-1)
	if who == 1 {
		number = 0
	}
	var out []chat
	for _, agent := range []string{"assistant", "coder"} {
		c, words := chat{who: who, agent: agent}, "read %[2]d a"
		if agent == "assistant" {
			words = "write %[2]d a content%[3]d;read %[2]d b|write %[2]d b content%[3]d-b"
		}
		for n := range 3 {
			s.scripts++
			s.contents++
			c.prompts = append(c.prompts, prompt{time.Duration(n) * p.heal / 4, fmt.Sprintf("plan %d: "+words, s.scripts, number, s.contents)})
		}
		out = append(out, c)
	}
	return out
}

// keyed reports that the owner of this machine holds the second key over a kind
// of work.
func (m *machine) keyed(kind string) bool {
	k := m.s.plan.key
	return k.machine == m.n && slices.Contains(k.over, kind)
}
