package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// plan is what a seed decides before anything happens.
type plan struct {
	devices    int // of the first person's machines, those that offer device actions
	sessions   []chat
	heal       time.Duration // from here on nothing fails any more
	poll       time.Duration // of the engines' ticks
	replicaTTL time.Duration // without a sign of life others take over
	budget     string        // of one turn, in US dollars
	approvals  time.Duration // how long a question stands
	onDenied   string
	network    rates
	partitions bool
	crashes    bool
	clocks     bool
	disks      bool
	labelCrash float64 // at each labelled step
	midCrash   float64 // between two transactions of one step
	newReplica float64 // a restarted server is another replica
	raced      float64 // a transaction runs twice
	lostReply  float64 // a commit is done or not, and its caller is told neither
	hintLost   float64 // a wake-up between servers
	refused    float64 // upstream: no connection
	broken     float64 // upstream: it happened, and no answer, or that of a proxy
	failing    float64 // upstream: HTTP 503, nothing happened
	modelFails float64
	cancels    float64
	closes     float64 // a session is closed in the middle
	recreates  float64 // the agent's instance is recreated in the middle
	revokes    float64 // a grant, a runner or a person is
	grants     bool    // agents work under grants
	lies       float64 // per second, of the runner that lies
	key        keyPlan // of one machine's owner
}

// chat is one session: whose, what is asked in it, and when.
type chat struct {
	who     int
	agent   string
	prompts []prompt
}

type prompt struct {
	at   time.Duration
	text string
}

// Plans by name, for how a seed may misbehave. There is none in which nothing
// does.
const (
	lossy      = "lossy"   // the network
	crashes    = "crashes" // processes
	rotten     = "rotten"  // databases, disks and clocks
	hostile    = "hostile" // people and machines
	everything = "everything"
)

func (s *Sim) makePlan() (kind string, p plan) {
	p = plan{
		heal: s.between(30*time.Second, 110*time.Second),
		poll: pick(s, 3*time.Second, 8*time.Second), replicaTTL: pick(s, 3*time.Second, 8*time.Second),
		budget: pick(s, "0.00012", "0.0004", "0.002", "0.01"), devices: 1 + s.rng.IntN(2),
		approvals: pick(s, 20*time.Second, 2*time.Minute), onDenied: pick(s, "continue", "continue", "fail"),
		cancels: s.rate(0.5), closes: s.rate(0.3), recreates: s.rate(0.3), grants: s.chance(0.5),
	}
	kind = pick(s, lossy, crashes, rotten, hostile, everything, everything, everything, everything)
	if kind == lossy || kind == everything {
		p.partitions = true
		p.network = rates{drop: s.rate(0.2), double: s.rate(0.2), slow: s.rate(0.3), late: s.rate(0.1)}
		p.refused, p.broken, p.failing, p.modelFails = s.rate(0.1), s.rate(0.4), s.rate(0.3), s.rate(0.1)
	}
	if kind == crashes || kind == everything {
		p.crashes = true
		p.labelCrash, p.midCrash, p.newReplica = s.rate(0.4), s.rate(0.05), pick(s, 0, 0.2, 0.6)
	}
	if kind == rotten || kind == everything {
		p.disks, p.clocks = s.chance(0.7), s.chance(0.5)
		p.raced, p.lostReply, p.hintLost = s.rate(0.2), s.rate(0.1), s.rate(0.5)
	}
	if kind == hostile || kind == everything {
		p.revokes, p.lies = 1-s.rate(1), pick(s, 0.2, 1)
	}
	p.sessions, p.key = s.chats(p), planKey(s.seed)
	p.sessions = append(p.sessions, s.underKey(p)...)
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

// chats of all people. The second one has a machine of their own, and their
// agent's tools need no name of it.
func (s *Sim) chats(p plan) []chat {
	var out []chat
	for range 3 + s.rng.IntN(3) {
		c := chat{who: pick(s, 0, 1), agent: pick(s, "assistant", "assistant", "assistant", "coder", "coder")}
		at := s.between(0, 5*time.Second)
		for range 2 + s.rng.IntN(4) {
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
	tools := []string{"read", "write", "write", "forecast", "send", "send", "order", "order", "note", "note"}
	if agent == "coder" {
		tools = []string{"edit", "edit", "shell", "read", "note", "note", "order", "order", "send"}
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
func (s *Sim) cuts() []window {
	var out []window
	if !s.plan.partitions {
		return nil
	}
	for range s.rng.IntN(3) {
		from := s.between(0, s.plan.heal)
		out = append(out, window{from, from + pick(s, s.between(time.Second, 12*time.Second), s.between(time.Second, 12*time.Second),
			s.between(12*time.Second, 60*time.Second), s.between(60*time.Second, 120*time.Second))})
	}
	return out
}
