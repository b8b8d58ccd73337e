package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// plan is what a seed decides before anything happens.
type plan struct {
	machines   int
	devices    int // machines that offer device actions
	sessions   []chat
	heal       time.Duration // from here on nothing fails any more
	poll       time.Duration // of the engine's ticks
	budget     string        // of one turn, in US dollars
	approvals  time.Duration // how long a question stands
	onDenied   string
	network    rates
	labelCrash float64 // at each labelled step
	midCrash   float64 // between two transactions of one step
	newReplica float64 // a restarted server is another replica
	refused    float64 // upstream: no connection
	broken     float64 // upstream: it happened, and no answer
	failing    float64 // upstream: HTTP 503, nothing happened
	modelFails float64
	cancels    float64
	closes     float64 // a session is closed in the middle
	recreates  float64 // the agent's instance is recreated in the middle
}

// chat is one session: what is asked in it, and when.
type chat struct {
	agent   string
	prompts []prompt
}

type prompt struct {
	at   time.Duration
	text string
}

// Plans by name, for how a seed may misbehave.
const (
	calm       = "calm"    // nothing fails
	lossy      = "lossy"   // the network only
	crashes    = "crashes" // processes only
	everything = "everything"
)

func (s *Sim) makePlan() (kind string, p plan) {
	p = plan{
		machines: 1 + s.rng.IntN(2), heal: s.between(40*time.Second, 4*time.Minute),
		poll: pick(s, time.Second, 2*time.Second, 4*time.Second), budget: pick(s, "0.00012", "0.0003", "0.01"),
		approvals: pick(s, 20*time.Second, 2*time.Minute), onDenied: pick(s, "continue", "continue", "fail"),
	}
	p.devices = 1 + s.rng.IntN(p.machines)
	kind = pick(s, calm, lossy, lossy, crashes, crashes, everything, everything, everything, everything, everything)
	if kind == lossy || kind == everything {
		p.network = rates{drop: s.rate(0.2), double: s.rate(0.2), slow: s.rate(0.3), late: s.rate(0.1)}
		p.refused, p.broken, p.failing, p.modelFails = s.rate(0.1), s.rate(0.4), s.rate(0.3), s.rate(0.1)
	}
	if kind == crashes || kind == everything {
		p.labelCrash, p.midCrash, p.newReplica = s.rate(0.3), s.rate(0.05), pick(s, 0, 0.2, 0.6)
	}
	if kind != calm {
		p.cancels, p.closes, p.recreates = s.rate(0.5), s.rate(0.3), s.rate(0.3)
	}
	p.sessions = s.chats(p)
	return kind, p
}

// rate is a chance up to most, small ones as likely as large ones, and none in
// one of three plans.
func (s *Sim) rate(most float64) float64 {
	if s.chance(1.0 / 3) {
		return 0
	}
	return most * math.Pow(10, -1.3*s.rng.Float64())
}

func (s *Sim) chats(p plan) []chat {
	var out []chat
	for range 1 + s.rng.IntN(4) {
		c := chat{agent: pick(s, "assistant", "assistant", "assistant", "coder", "coder")}
		at := s.between(0, 5*time.Second)
		for range 1 + s.rng.IntN(5) {
			c.prompts = append(c.prompts, prompt{at, s.script(c.agent, p)})
			at += s.between(0, p.heal/4)
		}
		out = append(out, c)
	}
	return out
}

// script is a prompt that tells the scripted model what to do: answers separated
// by "|", calls of one answer by ";".
func (s *Sim) script(agent string, p plan) string {
	var answers []string
	for range s.rng.IntN(5) {
		var calls []string
		for range 1 + s.rng.IntN(2) {
			calls = append(calls, s.toolCall(agent, p))
		}
		answers = append(answers, strings.Join(calls, ";"))
	}
	s.scripts++
	return fmt.Sprintf("plan %d: %s", s.scripts, strings.Join(answers, "|"))
}

// toolCall names few things, so that sessions and turns meet at them.
func (s *Sim) toolCall(agent string, p plan) string {
	thing := pick(s, "a", "b")
	tools := []string{"read", "write", "forecast", "send", "send", "order", "order", "note", "note"}
	if agent == "coder" {
		tools = []string{"edit", "edit", "shell", "read", "note", "note", "order", "order"}
	}
	tool := pick(s, tools...)
	if tool == "write" {
		s.contents++ // each write is its own: an inspector can tell them apart
		thing += fmt.Sprintf(" content%d", s.contents)
	}
	return fmt.Sprintf("%s %d %s", tool, s.rng.IntN(p.devices), thing)
}

// cuts are the windows in which a link is cut: some shorter than an authority
// ttl, some longer than a retention.
func (s *Sim) cuts(kind string, heal time.Duration) []window {
	var out []window
	if kind != lossy && kind != everything {
		return nil
	}
	for range s.rng.IntN(3) {
		from := s.between(0, heal)
		out = append(out, window{from, from + pick(s, s.between(time.Second, 12*time.Second), s.between(12*time.Second, 60*time.Second), s.between(60*time.Second, 150*time.Second))})
	}
	return out
}
