package supervise

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// requests are calls of tools that only the server dispatches. A model may use
// one call id in two of its answers; the server sees different ids, so that a
// repeated delivery of the first answer cannot pass for the second.
type requests struct {
	mu      sync.Mutex // guards the fields below
	used    map[string]int
	waiting map[string]chan answer
}

// answer of the server: a result, or that the attempt ends while a person decides.
type answer struct {
	result *runtimev1.ToolResult
	park   bool
}

func newRequests() *requests {
	return &requests{used: map[string]int{}, waiting: map[string]chan answer{}}
}

// open makes the id under which a call is journalled, and where its answer comes.
func (r *requests) open(callID string) (id string, answers <-chan answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id = callID
	r.used[callID]++
	if n := r.used[callID]; n > 1 {
		id = callID + "#" + strconv.Itoa(n)
	}
	c := make(chan answer, 1)
	r.waiting[id] = c
	return id, c
}

// wait returns the answer under the id that the worker knows, or errParked.
func (r *requests) wait(ctx context.Context, callID, id string, answers <-chan answer) (*runtimev1.ToolResult, error) {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, id)
	}()
	select {
	case a := <-answers:
		if a.park {
			return nil, errParked
		}
		a.result.CallId = callID
		return a.result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// answer delivers; one that nobody waits for was delivered before, or its worker
// is gone.
func (r *requests) answer(id string, encoded []byte, park bool) error {
	res := &runtimev1.ToolResult{}
	if err := proto.Unmarshal(encoded, res); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the answer of call %s cannot be read: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.waiting[id]; c != nil {
		delete(r.waiting, id)
		c <- answer{res, park}
	}
	return nil
}
