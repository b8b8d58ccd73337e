package jobs

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/op"
	"bivouac/jobs/workload"
)

// Times of the watch.
const (
	// listEvery is how often nodes are listed where no event says anything.
	listEvery = 30 * time.Second
	// listPause is the least time between two lists: a burst of events is one of them.
	listPause = 500 * time.Millisecond
	// staleAfter is how old a list may be that takes machines away: what was true long
	// ago is not said of today.
	staleAfter = 2 * time.Minute
	retryBase  = time.Second
	retryMost  = 30 * time.Second
)

// Standing is what Nomad says against giving a runner something new. The zero value
// is nothing.
type Standing struct {
	Text string
	// Remedy is the command that changes it.
	Remedy string
}

// Watch knows the nodes of runners and their allocations. It only ever takes machines
// out of the choice for what is new: nothing that runs is judged by it.
type Watch struct {
	cfg Config
	log *slog.Logger
	// hints counts what Nomad said without being asked, and bell rings for it.
	hints atomic.Uint64
	bell  op.Bell

	mu     sync.Mutex // guards below
	listed time.Time  // zero: never
	nodes  map[string]Standing
	allocs map[string]Standing // by the machine's name, see workload.Identity.Machine
	// rosters of the jobs of runners, by the rule's name.
	rosters map[string]roster
	// rooms of the machines' nodes; none where no allocations are made.
	rooms map[string]Measured
}

// NewWatch starts nothing.
func NewWatch(c Config, log *slog.Logger) *Watch {
	return &Watch{cfg: c, log: log, bell: op.NewBell()}
}

// Standing of a machine that enrolled by a workload identity. A list that is old says
// nothing.
func (w *Watch) Standing(machine string) (node, task Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listed.IsZero() || time.Since(w.listed) > staleAfter {
		return Standing{}, Standing{}
	}
	id := machine[strings.LastIndexByte(machine, '/')+1:]
	node, known := w.nodes[id]
	if !known {
		node = Standing{"Nomad knows its node no more (purged)", "nomad node status"}
	}
	return node, w.allocs[machine]
}

// Unknown is why nothing can be said of nodes; zero: it can.
func (w *Watch) Unknown() Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.listed.IsZero():
		return Standing{"Nomad has not said anything of its nodes yet", "bivouac doctor"}
	case time.Since(w.listed) > staleAfter:
		return Standing{"Nomad has not said anything of its nodes since " + w.listed.UTC().Format(time.RFC3339), "bivouac doctor"}
	}
	return Standing{}
}

// Run lists until ctx ends: on every event, and now and then without one.
func (w *Watch) Run(ctx context.Context) error {
	var index uint64
	pause := retryBase
	for ctx.Err() == nil {
		at, err := w.list(ctx)
		wait := listEvery
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			w.log.WarnContext(ctx, "Nomad's nodes could not be listed: nothing is taken from the choice", "error", err, "again_in", pause)
			wait, pause = pause, min(2*pause, retryMost)
		default:
			index, pause = at, retryBase
		}
		if err := w.rest(ctx, index, wait, err == nil); err != nil {
			w.log.DebugContext(ctx, "Nomad's events ended", "error", err)
		}
	}
	return nil
}

// rest waits for a hint or for its time. Events may be lost, doubled or cut off: each only
// wakes the next list.
func (w *Watch) rest(ctx context.Context, index uint64, wait time.Duration, follow bool) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if !follow {
		<-ctx.Done()
		return nil
	}
	least := time.NewTimer(listPause)
	defer least.Stop()
	topics, namespace := map[api.Topic][]string{api.TopicNode: {"*"}}, ""
	if sites := w.cfg.Sites(); len(sites) == 1 { // a stream has one namespace
		topics[api.TopicAllocation], topics[api.TopicEvaluation], namespace = []string{"*"}, []string{"*"}, sites[0].Namespace
	}
	err := w.cfg.ask(0, func(n *Nomad) error {
		stream, err := n.api.EventStream().Stream(ctx, topics, index+1, query(ctx, namespace))
		if err != nil {
			return err
		}
		for e := range stream {
			if e.Err != nil {
				return e.Err
			}
			if !e.IsHeartbeat() {
				w.hints.Add(1)
				w.bell.Ring()
				return nil
			}
		}
		return nil
	})
	if err != nil {
		<-ctx.Done() // by time alone
		return err
	}
	select {
	case <-least.C:
	case <-ctx.Done():
	}
	return nil
}

// list asks for all nodes, and for the allocations of the jobs of runners.
func (w *Watch) list(ctx context.Context) (index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var nodes map[string]Standing
	allocs, rosters, rooms := map[string]Standing{}, map[string]roster{}, map[string]Measured{}
	q := query(ctx, "")
	if w.cfg.MaxAllocations > 0 {
		q.Params = map[string]string{"resources": "true"}
	}
	err = w.cfg.Ask(func(n *Nomad) error {
		all, meta, err := n.api.Nodes().List(q)
		if err != nil {
			return n.failed("listing nodes", `node { policy = "read" }`, err)
		}
		index = meta.LastIndex
		nodes = n.standings(ctx, all)
		for _, rule := range w.cfg.Rules {
			newest, err := n.listAllocations(ctx, rule, allocs)
			if err != nil {
				return err
			}
			if rosters[rule.Name], err = n.call(ctx, rule, census{all, nodes, newest}, allocs); err != nil {
				return err
			}
			if w.cfg.MaxAllocations == 0 {
				continue
			}
			if err := n.measure(ctx, rule, all, rooms); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed, w.nodes, w.allocs, w.rosters, w.rooms = time.Now(), nodes, allocs, rosters, rooms
	return index, nil
}

// listAllocations keeps what is said of the newest allocation of each node, by machine,
// and returns those, by node.
func (n *Nomad) listAllocations(ctx context.Context, rule workload.Rule, into map[string]Standing) (map[string]*api.AllocationListStub, error) {
	all, _, err := n.api.Jobs().Allocations(rule.Job, false, query(ctx, rule.Namespace))
	if err = n.failed("listing the allocations of "+rule.Job, `namespace "`+rule.Namespace+`" { capabilities = ["read-job"] }`, err); notFound(err) {
		return nil, nil
	}
	newest := map[string]*api.AllocationListStub{}
	for _, a := range all {
		if of := newest[a.NodeID]; of == nil || a.CreateIndex >= of.CreateIndex {
			newest[a.NodeID] = a
			into[machineOn(rule, a.NodeID)] = allocStanding(a, rule.Task)
		}
	}
	return newest, err
}

// allocStanding says why a task does not run, in our words, with the last of Nomad's own.
func allocStanding(a *api.AllocationListStub, task string) Standing {
	status := allocStatus(a)
	last := ""
	if s := a.TaskStates[task]; s != nil {
		for _, e := range s.Events {
			if e.DisplayMessage != "" {
				last = ": " + e.DisplayMessage
			}
		}
	}
	if why := ended(a, task); why != "" && a.ClientStatus == api.AllocClientStatusFailed {
		last = ": " + why
	}
	switch a.ClientStatus {
	case api.AllocClientStatusPending:
		return Standing{"Nomad has not started it on its node yet" + last, status}
	case api.AllocClientStatusFailed:
		return Standing{"it failed on its node" + last, status}
	case api.AllocClientStatusLost:
		return Standing{"Nomad lost it with its node", status}
	case api.AllocClientStatusUnknown:
		return Standing{"Nomad does not know whether it runs: its node is out of reach", status}
	case api.AllocClientStatusComplete:
		return Standing{"Nomad has stopped it", "nomad job status -namespace " + a.Namespace}
	}
	return Standing{}
}

// allocStatus is the command that shows more of an allocation: without its namespace Nomad
// does not find it.
func allocStatus(a *api.AllocationListStub) string {
	return "nomad alloc status -namespace " + a.Namespace + " " + short(a.ID)
}
