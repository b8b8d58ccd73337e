package allocation

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

const (
	here  = "6d2b57f4-4a4e-4c4c-9d0e-0123456789ab"
	again = "7d2b57f4-4a4e-4c4c-9d0e-0123456789ab"
)

// world is a runner's directory, and a task for one attempt of it.
type world struct {
	t    *testing.T
	dir  *state.Dir
	a    state.Attempt
	task Task
	said *bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := state.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.SaveEnrolment(state.Enrolment{Server: "10.0.0.1:7401", Runner: "run_01jdv3k8x0q6v9w2m4t7y5z1ab"}); err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(protocol.NewID[protocol.AttemptKind](time.Now(), rand.Reader))
	w := &world{t: t, dir: dir, a: a, said: new(bytes.Buffer)}
	job := protocol.AllocationJob(a.ID, 1)
	w.task = Task{Job: job, State: dir.Path(), InJob: job, Alloc: here, Wait: time.Minute, Log: slog.New(slog.NewTextHandler(w.said, nil))}
	return w
}

func (w *world) expect() {
	w.t.Helper()
	if err := w.a.Expect(w.task.Job, []byte("offer")); err != nil {
		w.t.Fatal(err)
	}
}

// take runs the task to the end of its wait.
func (w *world) take(ctx context.Context) (bool, error) {
	_, ok, err := Take(ctx, w.task)
	return ok, err
}

// nothing holds a task to having done nothing, for a reason that it said.
func (w *world) nothing(ctx context.Context, why string) {
	w.t.Helper()
	w.said.Reset()
	ok, err := w.take(ctx)
	if ok || err != nil || !strings.Contains(w.said.String(), "nothing to do") || !strings.Contains(w.said.String(), why) {
		w.t.Errorf("want nothing because of %q: %v %v, said %s", why, ok, err, w.said)
	}
}

// A task takes its attempt as soon as the daemon has it; run again, in the same allocation
// or another one, it says who has it and ends well. INV-14.
func TestTaskRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		time.AfterFunc(30*time.Second, w.expect)
		began := time.Now()
		if ok, err := w.take(t.Context()); !ok || err != nil {
			t.Fatalf("%v %v: %s", ok, err, w.said)
		}
		if d := time.Since(began); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("it waited %v", d)
		}
		for _, alloc := range []string{here, again} {
			w.task.Alloc = alloc
			began := time.Now()
			w.nothing(t.Context(), "by allocation "+here+", which runs as process")
			if d := time.Since(began); d != 0 {
				t.Errorf("it waited %v", d)
			}
		}
		log, err := os.ReadFile(w.a.Log())
		if err != nil && !os.IsNotExist(err) || strings.Contains(string(log), "nothing to do") {
			t.Errorf("a log was made for it: %s, %v", log, err)
		}
		if err := os.WriteFile(w.a.Log(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.nothing(t.Context(), "begun once")
		if log, err := os.ReadFile(w.a.Log()); err != nil || !strings.Contains(string(log), again) {
			t.Errorf("the log of the attempt says %s, %v", log, err)
		}
	})
}

// A task that was stopped before it looked takes nothing, though its attempt is there.
func TestStoppedTaskTakesNothing(t *testing.T) {
	w := newWorld(t)
	w.expect()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.nothing(ctx, "the task was stopped before it had begun")
	if ok, err := w.take(t.Context()); !ok || err != nil {
		t.Errorf("twin: %v %v", ok, err)
	}
}

// A wait ends: without a daemon, with one that has no such offer, when the attempt goes
// elsewhere, and when the task is stopped. Nothing was made then.
func TestTaskEndsItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		began := time.Now()
		w.nothing(t.Context(), "no bivouac-edge runs on "+w.dir.Path())
		if d := time.Since(began); d < time.Minute || d > time.Minute+time.Second {
			t.Errorf("it waited %v", d)
		}
		release, err := w.dir.Lock()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		w.nothing(t.Context(), "had no offer of this attempt within 1m0s")
		if w.a.Exists() {
			t.Error("a directory was made")
		}
		stopped, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		w.nothing(stopped, "stopped before it had begun")

		if err := w.a.Expect(protocol.AllocationJob(w.a.ID, 2), nil); err != nil {
			t.Fatal(err)
		}
		w.nothing(t.Context(), "offered again meanwhile")
		if err := w.a.Remove(); err != nil {
			t.Fatal(err)
		}
		w.expect()
		if err := w.a.Withdraw(); err != nil {
			t.Fatal(err)
		}
		w.nothing(t.Context(), "does not wait for this allocation any more")
	})
}

// What is not Nomad's and the server's word is refused before a path is made of it. Each
// refusal names what helps; the same task without the mistake takes its attempt.
func TestForeignWordsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		code   protocol.Code
		says   string
	}{
		"a path":               {func(w *world) { w.job("bivouac-../../etc-1") }, protocol.CodeInvalidArgument, "--allocation"},
		"another kind of id":   {func(w *world) { w.job(w.a.ID.String()) }, protocol.CodeInvalidArgument, "--allocation"},
		"the job of a runner":  {func(w *world) { w.job("bivouac-runner") }, protocol.CodeInvalidArgument, "as the server makes it"},
		"a number that is not": {func(w *world) { w.job(strings.TrimSuffix(w.task.Job, "1") + "x") }, protocol.CodeInvalidArgument, "--allocation"},
		"a copied job":         {func(w *world) { w.task.InJob = "mine" }, protocol.CodeInvalidArgument, "is not copied"},
		"no task":              {func(w *world) { w.task.InJob, w.task.Alloc = "", "" }, protocol.CodeFailedPrecondition, `allocation = "own"`},
		"no allocation":        {func(w *world) { w.task.Alloc = "" }, protocol.CodeFailedPrecondition, "no task of Nomad"},
		"an odd allocation":    {func(w *world) { w.task.Alloc = here + "\n" }, protocol.CodeInvalidArgument, "NOMAD_ALLOC_ID"},
		"a path as allocation": {func(w *world) { w.task.Alloc = "../../x" }, protocol.CodeInvalidArgument, "NOMAD_ALLOC_ID"},
		"no wait":              {func(w *world) { w.task.Wait = 0 }, protocol.CodeInvalidArgument, "--wait"},
		"a long wait":          {func(w *world) { w.task.Wait = 25 * time.Hour }, protocol.CodeInvalidArgument, "--wait"},
		"no runner":            {func(w *world) { w.task.State = filepath.Join(w.dir.Path(), "absent") }, protocol.CodeFailedPrecondition, "there is no runner in"},
	} {
		w := newWorld(t)
		w.expect()
		right := w.task
		c.change(w)
		ok, err := w.take(t.Context())
		if ok || protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v %v", name, ok, err)
		}
		if _, taken, _ := w.a.Mark(); taken {
			t.Errorf("%s left a mark", name)
		}
		w.task = right
		if ok, err := w.take(t.Context()); !ok || err != nil {
			t.Errorf("the twin of %s: %v %v", name, ok, err)
		}
	}
}

// job gives a task another id, as its own job would have.
func (w *world) job(id string) { w.task.Job, w.task.InJob = id, id }
