// Package allocation is how a supervisor begins that another scheduler starts, as the
// task of an allocation: it waits for the daemon's word, and takes the attempt.
//
// It guarantees that an attempt is taken by one process ever, whatever is started how
// often: a task that a scheduler runs a second time, in the same allocation or another,
// finds the mark, says so and does nothing (INV-14). Nothing is done before the daemon
// has made the directory of the attempt whose offer names the job, and the wait for that
// ends. What names the job and the allocation comes from outside: anything but what a
// server and Nomad write is refused, and no part of it becomes a path.
//
// It refuses to reach a server: the daemon of the machine claims, and nobody else.
// It neither starts processes nor serves anything. Test it with go test alone.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// Bounds of how long a task waits for the daemon.
const (
	DefaultWait = 2 * time.Minute
	MinWait     = time.Second
	MaxWait     = time.Hour
)

// lookFirst and lookEvery are how often a task looks whether the daemon has its attempt:
// both hear of it at about the same time, and who comes a little early waits a little.
const lookFirst, lookEvery = 5 * time.Millisecond, 200 * time.Millisecond

// Task is what a scheduler runs.
type Task struct {
	// Job is the id of the job, as the server registered it.
	Job string
	// State is the path of the runner's directory.
	State string
	// InJob and Alloc are Nomad's own words about the task that this process is.
	InJob, Alloc string
	// Wait bounds the wait for the daemon: MinWait to MaxWait.
	Wait time.Duration
	Log  *slog.Logger
}

var allocID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// check refuses what no server and no Nomad writes.
func (t Task) check() (protocol.AttemptID, error) {
	id, _, err := protocol.ParseAllocationJob(t.Job)
	switch {
	case err != nil:
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "--allocation: %w", err)
	case t.InJob == "" || t.Alloc == "":
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "this is no task of Nomad (NOMAD_JOB_ID and NOMAD_ALLOC_ID are not set): bivouac-server registers a job for each turn of an agent with allocation = \"own\", and nothing is to be started by hand")
	case t.InJob != t.Job:
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "this is a task of the job %.80q, and --allocation names %s: the job of a turn is the server's and is not copied", t.InJob, t.Job)
	case !allocID.MatchString(t.Alloc):
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "NOMAD_ALLOC_ID is %.80q, which is no id of an allocation", t.Alloc)
	case t.Wait < MinWait || t.Wait > MaxWait:
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "--wait is %s: give it %s to %s", t.Wait, MinWait, MaxWait)
	}
	return id, nil
}

// Take waits until the daemon has the attempt of this task, and takes it. ok is false
// when there is nothing to do, which is no error: it was said, and the task is done.
func Take(ctx context.Context, t Task) (a state.Attempt, ok bool, err error) {
	id, err := t.check()
	if err != nil {
		return a, false, err
	}
	dir, err := state.Open(t.State)
	if err != nil {
		return a, false, err
	}
	a = dir.Attempt(id)
	log := t.Log.With("attempt", id, "job", t.Job, "allocation", t.Alloc)
	log.Info("this task waits until bivouac-edge has its turn", "within", t.Wait)
	const stopped = "the task was stopped before it had begun"
	pause := lookFirst
	for until := time.Now().Add(t.Wait); ; pause = min(2*pause, lookEvery) {
		if ctx.Err() != nil {
			return a, false, t.nothing(a, log, stopped)
		}
		m, err := a.Take(t.Job, t.Alloc)
		switch {
		case err == nil:
			log.Info("this allocation has the attempt")
			return a, true, nil
		case errors.Is(err, state.ErrTaken):
			return a, false, t.nothing(a, log, takenBefore(m, err))
		case errors.Is(err, state.ErrOther):
			return a, false, t.nothing(a, log, "the attempt was offered again meanwhile, and is not this allocation's any more")
		case !errors.Is(err, state.ErrNotYet):
			return a, false, err
		case !time.Now().Before(until):
			return a, false, t.nothing(a, log, nobody(dir, t.Wait))
		}
		op.Sleep(ctx, pause)
	}
}

// takenBefore says who has the attempt.
func takenBefore(m state.Mark, err error) string {
	switch {
	case m.Withdrawn:
		return "bivouac-edge does not wait for this allocation any more"
	case m.Alloc == "": // the mark cannot be read
		return err.Error()
	}
	runs := "which has ended"
	if m.Alive() {
		runs = fmt.Sprintf("which runs as process %d", m.PID)
	}
	return fmt.Sprintf("the attempt was taken at %s by allocation %s, %s; an attempt is begun once", m.At.UTC().Format(time.RFC3339), m.Alloc, runs)
}

// nobody says why there was nothing to take.
func nobody(dir *state.Dir, wait time.Duration) string {
	if pid, runs := dir.Holder(); runs {
		return fmt.Sprintf("bivouac-edge (process %d) had no offer of this attempt within %s, or it is over: `bivouac explain` of the turn says where it is", pid, wait)
	}
	return fmt.Sprintf("no bivouac-edge runs on %s, and none came within %s: Nomad's job bivouac-runner starts it; see `nomad job status -namespace '*' bivouac-runner` and `%s`", dir.Path(), wait, dir.Command("doctor"))
}

// nothing ends a task that has nothing to do: it says so where people look, in its own
// output and in the log of the attempt, where there is one.
func (t Task) nothing(a state.Attempt, log *slog.Logger, why string) error {
	const message = "this task has nothing to do, and ends"
	log.Info(message, "because", why)
	f, err := os.OpenFile(a.Log(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil // there is no attempt here
	}
	slog.New(slog.NewTextHandler(f, nil)).Info(message, "job", t.Job, "allocation", t.Alloc, "because", why)
	return f.Close()
}
