package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
	"bivouac/edge/supervise"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// TestMain is also bivouac-edge itself, as a task that a scheduler starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		main()
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "gives-back" {
		givesBack()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const firstAlloc = "6d2b57f4-4a4e-4c4c-9d0e-0123456789ab"

// node is a machine whose runner waits for the task of an attempt. The test is its daemon,
// and the scheduler that starts tasks.
type node struct {
	t   *testing.T
	dir *state.Dir
	a   state.Attempt
	job string
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := state.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	root := identitytest.NewRoot()
	key, err := dir.Key(true)
	if err != nil {
		t.Fatal(err)
	}
	id := identitytest.RunnerID(key)
	leaf := root.Certify(key, identity.RoleRunner, id.String(), "ten_01jdv3k8x0q6v9w2m4t7y5z1ab", time.Now().Add(-time.Hour), time.Now().Add(time.Hour)).Leaf
	err = errors.Join(dir.SaveRoot(root.Certificate), dir.SaveCertificate(identitytest.PEM(leaf)), durable.Replace(dir.Policy(), owner.Render(owner.Policy{Slots: 1}), 0o600),
		dir.SaveEnrolment(state.Enrolment{Server: "127.0.0.1:1", Broker: "127.0.0.1:1", Runner: id}))
	if err != nil {
		t.Fatal(err)
	}
	a := dir.Attempt(protocol.NewID[protocol.AttemptKind](time.Now(), rand.Reader))
	return &node{t: t, dir: dir, a: a, job: protocol.AllocationJob(a.ID, 1)}
}

// expect is the daemon's word.
func (n *node) expect() {
	n.t.Helper()
	if err := n.a.Expect(n.job, nil); err != nil {
		n.t.Fatal(err)
	}
}

// task is a process that a scheduler started.
type task struct {
	*exec.Cmd
	out  string // the file of what it says
	done chan struct{}
}

// said is what it has said so far.
func (t *task) said() string {
	b, _ := os.ReadFile(t.out) // nothing yet
	return string(b)
}

// secret is of the scheduler's environment; no supervisor has it.
const secret = "canary-of-the-task"

// run starts the task in an allocation.
func (n *node) run(alloc string, more ...string) *task {
	n.t.Helper()
	args := append([]string{"supervise", "--allocation", n.job, "--state", n.dir.Path(), "--wait", "30s"}, more...)
	t := &task{Cmd: exec.Command(os.Args[0], args...), out: filepath.Join(n.t.TempDir(), "out"), done: make(chan struct{})}
	t.Env = append(os.Environ(), "NOMAD_JOB_ID="+n.job, "NOMAD_ALLOC_ID="+alloc, "NOMAD_TOKEN="+secret)
	out, err := os.Create(t.out)
	if err != nil {
		n.t.Fatal(err)
	}
	defer out.Close()
	t.Stdout, t.Stderr = out, out
	if err := t.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer close(t.done)
		_ = t.Wait()
	}()
	n.t.Cleanup(func() {
		_ = t.Process.Kill() // it may have ended
		<-t.done
	})
	return t
}

// ended waits for a task's end.
func (t *task) ended(test *testing.T) syscall.WaitStatus {
	test.Helper()
	select {
	case <-t.done:
		return t.ProcessState.Sys().(syscall.WaitStatus)
	case <-test.Context().Done():
		test.Fatal("the task does not end")
		return 0
	}
}

// hello waits until a supervisor serves the attempt.
func (n *node) hello(t *task) *supervisev1.HelloResponse {
	n.t.Helper()
	http := supervise.Client(n.a.Path())
	defer http.CloseIdleConnections()
	client := supervisev1connect.NewSuperviseServiceClient(http, "http://supervisor")
	for {
		hello, err := client.Hello(n.t.Context(), &supervisev1.HelloRequest{})
		if err == nil {
			return hello
		}
		select {
		case <-t.done:
			n.t.Fatalf("the task ended: %s\n%s", t.said(), n.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (n *node) log() string {
	b, _ := os.ReadFile(n.a.Log()) // there may be none yet
	return string(b)
}

// A task that a scheduler starts before the daemon has its attempt waits, takes it, and is
// from then on the supervisor that the daemon would have started: under the same number,
// with no environment of its task, a log in the attempt and mounts of its own. INV-14,
// INV-17. Everything that is started for the attempt after it ends well and does nothing.
func TestTaskBecomesTheSupervisor(t *testing.T) {
	n := newNode(t)
	first := n.run(firstAlloc)
	time.AfterFunc(300*time.Millisecond, n.expect)
	hello := n.hello(first)
	mark, _, err := n.a.Mark()
	if err != nil || hello.GetBootNonce() != mark.BootNonce || hello.GetAttemptId() != n.a.ID.String() ||
		int(hello.GetPid()) != first.Process.Pid || mark.PID != first.Process.Pid || mark.Alloc != firstAlloc || hello.GetBegun() {
		t.Errorf("hello %v, mark %+v, %v; the task is process %d", hello, mark, err, first.Process.Pid)
	}
	proc := "/proc/" + strconv.Itoa(first.Process.Pid)
	if env, err := os.ReadFile(proc + "/environ"); err != nil || bytes.Contains(env, []byte(secret)) || bytes.Contains(env, []byte("NOMAD_")) {
		t.Errorf("its environment is %q, %v", env, err)
	}
	if line, err := os.ReadFile(proc + "/cmdline"); err != nil || !bytes.Contains(line, []byte(n.a.Path())) || bytes.Contains(line, []byte(secret)) {
		t.Errorf("its command line is %q, %v", line, err)
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := os.Readlink(proc + "/ns/mnt"); err != nil || (theirs != ours) != (os.Geteuid() == 0) {
		t.Errorf("it mounts in %s, we in %s, %v (INV-18)", theirs, ours, err)
	}
	for _, alloc := range []string{firstAlloc, "7d2b57f4-4a4e-4c4c-9d0e-0123456789ab"} {
		again := n.run(alloc)
		if s := again.ended(t); s.ExitStatus() != 0 || !strings.Contains(again.said(), "nothing to do") || !strings.Contains(again.said(), "by allocation "+firstAlloc) {
			t.Errorf("run again in %s: %v, said %s", alloc, s, again.said())
		}
	}
	if now := n.hello(first); now.GetBootNonce() != mark.BootNonce || int(now.GetPid()) != first.Process.Pid {
		t.Errorf("the supervisor is another one: %v", now)
	}
	if log := n.log(); !strings.Contains(log, "nothing to do") {
		t.Errorf("the attempt's log does not say that it was run again: %s", log)
	}
}

// A scheduler that ends the task before it had work: it ends well, and nothing was done.
func TestTaskIsStopped(t *testing.T) {
	for _, waits := range []bool{true, false} {
		n := newNode(t)
		one := n.run(firstAlloc)
		if !waits {
			n.expect()
			n.hello(one)
		} else {
			awaitLine(t, one)
		}
		if err := one.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if s := one.ended(t); s.ExitStatus() != 0 {
			t.Errorf("waiting: %v; it ended with %v: %s\n%s", waits, s, one.said(), n.log())
		}
		if _, taken, err := n.a.Mark(); err != nil || taken == waits {
			t.Errorf("waiting: %v; taken: %v, %v", waits, taken, err)
		}
	}
}

// awaitLine returns when a task said that it waits.
func awaitLine(t *testing.T, one *task) {
	t.Helper()
	for !strings.Contains(one.said(), "this task waits") {
		select {
		case <-t.Context().Done():
			t.Fatal("it does not wait")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Killed, the task leaves its mark: nobody begins after it, neither a task that is started
// again nor the supervisor that the daemon then starts for its records, which says that the
// attempt was interrupted. The daemon finds and ends it by its number before. INV-14.
func TestTaskIsKilled(t *testing.T) {
	n := newNode(t)
	n.expect()
	first := n.run(firstAlloc)
	nonce := n.hello(first).GetBootNonce()
	spawner, why := supervisors(beside("bivouac-worker"))
	if spawner == nil {
		t.Fatal(why)
	}
	if err := spawner.Start(t.Context(), n.a); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("one beside it: %v", err)
	}
	beside := exec.Command(os.Args[0], "supervise", "--dir", n.a.Path())
	if out, err := beside.CombinedOutput(); err == nil || !strings.Contains(string(out), "runs as process "+strconv.Itoa(first.Process.Pid)) {
		t.Errorf("one beside it by hand: %v %s", err, out)
	}
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := spawner.Kill(limit, n.a); err != nil {
		t.Fatal(err)
	}
	if s := first.ended(t); s.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", s)
	}
	again := n.run(firstAlloc)
	if s := again.ended(t); s.ExitStatus() != 0 || !strings.Contains(again.said(), "which has ended") {
		t.Errorf("run again: %v, said %s", s, again.said())
	}
	if err := spawner.Start(t.Context(), n.a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spawner.Kill(context.Background(), n.a) })
	hello := n.recovered()
	if !hello.GetBegun() || !hello.GetFinished() || hello.GetBootNonce() != nonce {
		t.Errorf("who has its records says %v", hello)
	}
}

// Beside a supervisor whose process is not seen none begins, and none has its records: it
// has the directory's lock. INV-14.
func TestSupervisorBesideAnUnseenOne(t *testing.T) {
	n := newNode(t)
	n.expect()
	first := n.run(firstAlloc)
	n.hello(first)
	file := filepath.Join(n.a.Path(), "taken")
	mark, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid := []byte("\"pid\":" + strconv.Itoa(first.Process.Pid))
	if err := os.WriteFile(file, bytes.Replace(mark, pid, []byte("\"pid\":1073741824"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	second := exec.Command(os.Args[0], "supervise", "--dir", n.a.Path())
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another supervisor of attempt "+n.a.ID.String()) {
		t.Errorf("one beside it: %v %s", err, out)
	}
	_ = first.Process.Kill()
	first.ended(t)
	spawner, why := supervisors(beside("bivouac-worker"))
	if spawner == nil {
		t.Fatal(why)
	}
	if err := spawner.Start(t.Context(), n.a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spawner.Kill(context.Background(), n.a) })
	if hello := n.recovered(); !hello.GetFinished() {
		t.Errorf("twin: after its end: %v", hello)
	}
}

// recovered waits for the supervisor that has the records.
func (n *node) recovered() *supervisev1.HelloResponse {
	n.t.Helper()
	http := supervise.Client(n.a.Path())
	defer http.CloseIdleConnections()
	client := supervisev1connect.NewSuperviseServiceClient(http, "http://supervisor")
	for {
		hello, err := client.Hello(n.t.Context(), &supervisev1.HelloRequest{})
		if err == nil {
			return hello
		}
		select {
		case <-n.t.Context().Done():
			n.t.Fatalf("nobody answers: %v\n%s", err, n.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Bad input ends with an error that says what helps, before anything is made.
func TestSuperviseRefuses(t *testing.T) {
	n := newNode(t)
	n.expect()
	for _, c := range []struct {
		args []string
		env  []string
		code protocol.Code
		says string
	}{
		{nil, nil, protocol.CodeInvalidArgument, "either --dir or --allocation"},
		{[]string{"--allocation", n.job, "--dir", n.a.Path()}, nil, protocol.CodeInvalidArgument, "either --dir or --allocation"},
		{[]string{"--dir", n.a.Path(), "--wait", "10s"}, nil, protocol.CodeInvalidArgument, "--wait goes with --allocation"},
		{[]string{"--allocation", "../../" + n.job}, nil, protocol.CodeInvalidArgument, "not the job of an attempt"},
		{[]string{"--allocation", n.job}, nil, protocol.CodeFailedPrecondition, "no task of Nomad"},
		{[]string{"--allocation", n.job}, []string{"NOMAD_JOB_ID=other", "NOMAD_ALLOC_ID=" + firstAlloc}, protocol.CodeInvalidArgument, "is not copied"},
		{[]string{"--allocation", n.job, "--wait", "0s"}, []string{"NOMAD_JOB_ID=" + n.job, "NOMAD_ALLOC_ID=" + firstAlloc}, protocol.CodeInvalidArgument, "--wait"},
		{[]string{"--allocation", n.job, "--state", n.dir.Path() + "/x"}, []string{"NOMAD_JOB_ID=" + n.job, "NOMAD_ALLOC_ID=" + firstAlloc}, protocol.CodeFailedPrecondition, "there is no runner in"},
		{[]string{"--dir", n.a.Path()}, nil, protocol.CodeFailedPrecondition, "has no boot nonce"},
	} {
		args := append([]string{"supervise"}, c.args...)
		if !slices.Contains(c.args, "--state") {
			args = append(args, "--state", n.dir.Path())
		}
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOMAD_") }), c.env...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != c.code.ExitCode() || !strings.Contains(string(out), c.says) || !strings.Contains(string(out), "["+string(c.code)+"]") {
			t.Errorf("%v %v: %v, said %s", c.args, c.env, err, out)
		}
	}
	if _, taken, err := n.a.Mark(); err != nil || taken {
		t.Errorf("a refusal left a mark: %v %v", taken, err)
	}
	out, err := exec.Command(os.Args[0], "supervise", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--allocation JOB") || !strings.Contains(string(out), "SIGTERM") {
		t.Errorf("its help: %v %s", err, out)
	}
}
