package loop

import (
	"fmt"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

// FuzzStep drives the loop with any order of inputs. Whatever comes, one result
// a call, at most one command outstanding, and an end that stays the end.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 40, 2, 3})
	f.Add([]byte{1, 130, 7, 2, 2, 2, 1, 0, 4})
	f.Add([]byte{3, 3, 3, 3, 3, 3, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := spec()
		s.Limits.MaxModelCalls, s.Limits.MaxToolCalls, s.Limits.MaxCorrections = 5, 5, 3
		state, commands := Step(New(s), Begin{})
		outstanding := commands
		for i := 0; i < len(script); i++ {
			in := inputFrom(script, &i, state)
			before := proto.CloneOf(state)
			next, commands := Step(state, in)
			if !proto.Equal(before, state) {
				t.Fatalf("%T changed the state it was given", in)
			}
			if before.Phase == runtimev1.Phase_PHASE_DONE {
				if !proto.Equal(before, next) {
					t.Fatalf("%T moved a turn that had ended", in)
				}
			} else if _, again := in.(Begin); !again && len(commands) == 0 && !proto.Equal(before, next) {
				t.Fatalf("%T changed the state and left nothing to do", in)
			}
			if len(commands) > 1 {
				t.Fatalf("%d commands outstanding", len(commands))
			}
			if len(commands) == 1 {
				outstanding = commands
			}
			fits(t, next, outstanding[0])
			onceEach(t, next)
			state = next
		}
	})
}

// fits is the promise that the state and the outstanding command agree, and that
// no limit was passed.
func fits(t *testing.T, s *runtimev1.LoopState, c Command) {
	t.Helper()
	switch c := c.(type) {
	case CallModel:
		if s.Phase != runtimev1.Phase_PHASE_MODEL || len(s.Pending) != 0 {
			t.Fatalf("a model call is outstanding in %s with %d calls pending", s.Phase, len(s.Pending))
		}
	case CallTool:
		if s.Phase != runtimev1.Phase_PHASE_TOOL || s.Pending[0].Id != c.Call.Id {
			t.Fatalf("call %s is outstanding in %s", c.Call.Id, s.Phase)
		}
	case Finish:
		if s.Phase != runtimev1.Phase_PHASE_DONE || len(s.Pending) != 0 || s.Outcome == nil {
			t.Fatalf("finished in %s with %d calls pending", s.Phase, len(s.Pending))
		}
	}
	if s.ModelCalls > s.Limits.MaxModelCalls || s.ToolCalls > s.Limits.MaxToolCalls ||
		s.Corrections > s.Limits.MaxCorrections+1 || s.ModelRetries > maxModelRetries {
		t.Fatalf("a limit was passed: %v", s)
	}
}

// inputFrom reads one input; calls take the bytes that follow.
func inputFrom(script []byte, i *int, s *runtimev1.LoopState) Input {
	take := func() byte {
		if *i+1 >= len(script) {
			return 0
		}
		*i++
		return script[*i]
	}
	switch b := script[*i]; b % 8 {
	case 0:
		return says(text("done"))
	case 1:
		var blocks []*runtimev1.Block
		for n := take() % 4; n > 0; n-- {
			c := take()
			aliases := []string{"read", "send", "none", ""}
			args := []string{arguments, `{"to":"x"}`, `{`, `{"path":1}`, ``, "\xff"}
			blocks = append(blocks, call(fmt.Sprint(c%3), aliases[c%4], args[int(c)%len(args)]))
		}
		return says(blocks...)
	case 2:
		id := ""
		if len(s.Pending) > 0 {
			id = s.Pending[0].Id
		}
		return answers(id, runtimev1.ResultStatus(take()%6), string(script[*i:]), "")
	case 3:
		codes := []protocol.Code{protocol.CodeUnavailable, protocol.CodeRateLimited, protocol.CodeUnauthenticated}
		return fails(codes[int(take())%len(codes)])
	case 4:
		return Begin{}
	case 5:
		return ok("foreign", "x")
	case 6:
		if b > 200 {
			return Cancel{}
		}
		return says()
	}
	if script[*i] > 200 {
		return Expire{}
	}
	return ModelAnswered{}
}
