package enginetest

import (
	"context"
	"slices"
	"sync"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// Nomad is another scheduler in process: it has jobs, and room for some of them. Its
// zero value has room for none; make it with NewNomad.
type Nomad struct {
	// Room is how many jobs run at once; more wait. Max is what the server may ask for.
	Room, Max int
	// Has is what each node has for one job, Largest what the largest one has.
	Has, Largest execution.Resources
	// Refuse is the answer to every request for a job; Down to everything. Lost has
	// requests carried out, and nobody answered; Slow keeps the job from running.
	Refuse, Down error
	Lost, Slow   bool
	// Asked counts requests for each job, Registered those that made it. Peak is how many
	// were there at once and had not ended.
	Asked, Registered map[string]int
	Peak              int
	// Foreign are jobs of others, which are not listed.
	Foreign []string

	mu    sync.Mutex // guards jobs and hints
	jobs  []*job
	hints uint64
	bell  op.Bell
}

type job struct {
	engine.Allocation
	stopped, ended bool
	why            string
}

// NewNomad has room.
func NewNomad(room int) *Nomad {
	const much = 1 << 40
	has := execution.Resources{CPUMillis: much, MemoryBytes: much, DiskBytes: much}
	return &Nomad{Room: room, Max: 50, Has: has, Largest: has, Asked: map[string]int{}, Registered: map[string]int{}, bell: op.NewBell()}
}

// WithNomad has the world's runners' turns started there, where their agents ask for it.
func WithNomad(n *Nomad) Option { return func(w *World) { w.Nomad = n } }

// Most at once.
func (n *Nomad) Most() int { return n.Max }

// Hints count changes.
func (n *Nomad) Hints() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hints
}

// Bell rings for them.
func (n *Nomad) Bell() op.Bell { return n.bell }

// Start makes a job that is not there yet.
func (n *Nomad) Start(_ context.Context, a engine.Allocation) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Asked[a.Job]++
	switch i := n.find(a.Job); {
	case n.Down != nil:
		return n.Down
	case n.Refuse != nil:
		return n.Refuse
	case slices.Contains(n.Foreign, a.Job):
		return protocol.Errorf(protocol.CodeAlreadyExists, "there is a job %s that is not this server's", a.Job)
	case i >= 0:
		return nil
	}
	n.Registered[a.Job]++
	n.jobs = append(n.jobs, &job{Allocation: a})
	n.changed()
	if n.Lost {
		return protocol.Errorf(protocol.CodeUnavailable, "the answer was lost")
	}
	return nil
}

// changed is called with the lock held.
func (n *Nomad) changed() {
	live := 0
	for _, j := range n.jobs {
		if !j.ended {
			live++
		}
	}
	n.Peak = max(n.Peak, live)
	n.hints++
	n.bell.Ring()
}

func (n *Nomad) find(id string) int {
	return slices.IndexFunc(n.jobs, func(j *job) bool { return j.Job == id })
}

// List says which there are.
func (n *Nomad) List(context.Context) ([]engine.Allocated, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.Down != nil {
		return nil, n.Down
	}
	var out []engine.Allocated
	for _, j := range n.jobs {
		s := engine.Allocated{Job: j.Job, Ended: j.ended, Stopped: j.stopped, Said: placement.Said{Text: j.why}}
		if !j.ended && !n.runs(j) {
			s.Waits, s.Said = true, placement.Said{Text: "the node has no memory left", Remedy: "wait"}
		}
		out = append(out, s)
	}
	return out, nil
}

// Stop ends a job, and removes one that has ended.
func (n *Nomad) Stop(_ context.Context, a engine.Allocated) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.find(a.Job)
	switch {
	case n.Down != nil:
		return n.Down
	case i < 0:
	case n.jobs[i].ended:
		n.jobs = slices.Delete(n.jobs, i, i+1)
	default:
		n.jobs[i].stopped, n.jobs[i].ended = true, true
	}
	n.changed()
	return nil
}

// Explain says what has become of a job.
func (n *Nomad) Explain(_ context.Context, workload, id string) (placement.Said, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.find(id)
	switch {
	case n.Down != nil:
		return placement.Said{}, n.Down
	case i < 0:
		return placement.Said{Text: "there is no such job"}, nil
	case n.runs(n.jobs[i]):
		return placement.Said{Text: "it runs"}, nil
	}
	return placement.Said{Text: "no memory is left on the node of " + workload, Remedy: "nomad job status " + id}, nil
}

// Word is how the task of a job ended.
func (n *Nomad) Word(_ context.Context, _, id string) (string, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.find(id)
	switch {
	case n.Down != nil:
		return "", false, n.Down
	case i < 0:
		return "", true, nil
	}
	return n.jobs[i].why, n.jobs[i].ended, nil
}

// runs: the first jobs that have not ended have the room.
func (n *Nomad) runs(j *job) bool {
	before := 0
	for _, o := range n.jobs {
		if o == j {
			small := j.CPUMillis <= n.Has.CPUMillis && j.MemoryBytes <= n.Has.MemoryBytes && j.DiskBytes <= n.Has.DiskBytes
			return !j.ended && !n.Slow && before < n.Room && small
		}
		if !o.ended {
			before++
		}
	}
	return false
}

// Runs reports that a job's supervisor is there to be claimed for.
func (n *Nomad) Runs(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.find(id)
	return i >= 0 && n.runs(n.jobs[i])
}

// End has the task of a job end, with what is said of it.
func (n *Nomad) End(id, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := n.find(id); i >= 0 && !n.jobs[i].ended {
		n.jobs[i].ended, n.jobs[i].why = true, why
		n.changed()
	}
}

// Remove takes a job away by hand.
func (n *Nomad) Remove(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := n.find(id); i >= 0 {
		n.jobs = slices.Delete(n.jobs, i, i+1)
		n.changed()
	}
}

// Put makes a job by hand, as one that a store of before has forgotten.
func (n *Nomad) Put(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.jobs = append(n.jobs, &job{Allocation: engine.Allocation{Job: id}})
	n.changed()
}

// Jobs that there are, and whether each has ended.
func (n *Nomad) Jobs() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]bool{}
	for _, j := range n.jobs {
		out[j.Job] = j.ended
	}
	return out
}
