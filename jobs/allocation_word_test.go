package jobs

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

// A task's end is told by the last end that Nomad saw: what it decided after that, and what
// it said of other tasks, is not how it ended.
func TestHowATaskEnded(t *testing.T) {
	terminated := func(details map[string]string) *api.TaskEvent {
		return &api.TaskEvent{Type: api.TaskTerminated, Details: details}
	}
	after := &api.TaskEvent{Type: api.TaskNotRestarting, DisplayMessage: "Policy allows no restarts"}
	for want, events := range map[string][]*api.TaskEvent{
		"":                                      {{Type: api.TaskStarted, DisplayMessage: "Task started by client"}},
		"exit code 3":                           {terminated(map[string]string{"exit_code": "3", "signal": "0", "oom_killed": "false"}), after},
		"signal 9, it had no memory left (OOM)": {terminated(map[string]string{"exit_code": "137", "signal": "9", "oom_killed": "true"}), after},
		"signal 15: stopped":                    {terminated(map[string]string{"exit_code": "0"}), {Type: api.TaskTerminated, Signal: 15, Message: "stopped"}},
		"no such program":                       {{Type: api.TaskDriverFailure, DisplayMessage: "no such program"}, after},
	} {
		a := &api.AllocationListStub{TaskStates: map[string]*api.TaskState{taskName: {Events: events}, "other": {Events: []*api.TaskEvent{terminated(nil)}}}}
		if got := ended(a, taskName); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := ended(&api.AllocationListStub{}, taskName); got != "" {
		t.Errorf("nothing is known, and it says %q", got)
	}
}
