package state

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/protocol"
)

const (
	allocID = "6d2b57f4-4a4e-4c4c-9d0e-0123456789ab"
	waiting = protocol.AttemptID("att_01jdv3k8x0q6v9w2m4t7y5z1ab")
)

// expected makes the directory of an attempt that waits for job.
func expected(t *testing.T, n int) (Attempt, string) {
	t.Helper()
	d, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, job := d.Attempt(waiting), protocol.AllocationJob(waiting, n)
	if err := a.Expect(job, []byte("offer")); err != nil {
		t.Fatal(err)
	}
	return a, job
}

// One supervisor takes a directory ever, however many try at the same time, and its nonce
// is the directory's. INV-14.
func TestOneTakesADirectory(t *testing.T) {
	a, job := expected(t, 1)
	if _, err := a.BootNonce(); err == nil {
		t.Fatal("a directory that nobody took has a nonce")
	}
	var wg sync.WaitGroup
	got := make([]error, 20)
	marks := make([]Mark, len(got))
	for i := range got {
		wg.Go(func() { marks[i], got[i] = a.Take(job, allocID) })
	}
	wg.Wait()
	taken := 0
	for i, err := range got {
		switch {
		case err == nil:
			taken++
			if nonce, err := a.BootNonce(); err != nil || nonce != marks[i].BootNonce {
				t.Errorf("the nonce is %q, %v; the mark says %q", nonce, err, marks[i].BootNonce)
			}
		case !errors.Is(err, ErrTaken) || marks[i].Alloc != allocID:
			t.Errorf("who came late: %+v, %v", marks[i], err)
		}
	}
	if m, ok, err := a.Mark(); taken != 1 || !ok || err != nil || m.Process != Self() {
		t.Errorf("%d took it; the mark is %+v %v %v", taken, m, ok, err)
	}
	left, err := filepath.Glob(filepath.Join(a.Path(), markFile+".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("unfinished marks are left: %v %v", left, err)
	}
	if offer, err := a.Offer(); err != nil || string(offer) != "offer" {
		t.Errorf("the offer is %q, %v", offer, err)
	}
}

// What is not this allocation's is left alone, and its twin is taken.
func TestOnlyTheExpectedTakes(t *testing.T) {
	a, job := expected(t, 2)
	if _, err := a.Take(protocol.AllocationJob(waiting, 1), allocID); !errors.Is(err, ErrOther) {
		t.Errorf("an earlier allocation: %v", err)
	}
	if _, ok, _ := a.Mark(); ok {
		t.Error("it left a mark")
	}
	if _, err := a.Take(job, allocID); err != nil {
		t.Errorf("the right one: %v", err)
	}
	d, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := d.Attempt(waiting)
	if _, err := b.Take(job, allocID); !errors.Is(err, ErrNotYet) || b.Exists() {
		t.Errorf("without a directory: %v", err)
	}
	if err := os.MkdirAll(b.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(job, allocID); !errors.Is(err, ErrNotYet) {
		t.Errorf("in one that is not finished: %v", err)
	}
	if _, err := b.Make(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(job, allocID); !errors.Is(err, ErrOther) {
		t.Errorf("in one whose supervisor the daemon starts: %v", err)
	}
}

// A daemon that does not wait any more takes the directory itself: from then on nobody can,
// not even who had opened it before it went away. Who was faster stays.
func TestWithdrawn(t *testing.T) {
	a, job := expected(t, 1)
	root, err := os.OpenRoot(a.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for range 2 {
		if err := a.Withdraw(); err != nil {
			t.Fatal(err)
		}
	}
	m, err := a.Take(job, allocID)
	if !errors.Is(err, ErrTaken) || !m.Withdrawn {
		t.Errorf("after the withdrawal: %+v, %v", m, err)
	}
	if _, err := a.BootNonce(); err == nil {
		t.Error("nobody's mark is a nonce")
	}
	if err := a.Remove(); err != nil || a.Exists() {
		t.Fatal(err)
	}
	if err := expects(root, job); err == nil {
		t.Error("the directory that was removed waits for the job")
	}
	if err := a.Withdraw(); err != nil {
		t.Errorf("of nothing: %v", err)
	}

	b, job := expected(t, 1)
	if _, err := b.Take(job, allocID); err != nil {
		t.Fatal(err)
	}
	if err := b.Withdraw(); !errors.Is(err, ErrTaken) {
		t.Errorf("a withdrawal that came late: %v", err)
	}
}

// A mark that was damaged belongs to nobody, and to no second one either.
func TestDamagedMark(t *testing.T) {
	a, job := expected(t, 1)
	if err := os.WriteFile(filepath.Join(a.Path(), markFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(job, allocID); !errors.Is(err, ErrTaken) || protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("taken again: %v", err)
	}
	if m, ok, err := a.Mark(); !ok || err == nil || m.Alive() {
		t.Errorf("%+v %v %v", m, ok, err)
	}
}

// A task that does not see the daemon's processes could not be ended by it.
func TestAnotherPIDNamespaceIsRefused(t *testing.T) {
	if PIDNamespace() == "" {
		t.Skip("this system has no namespaces of processes")
	}
	a, job := expected(t, 1)
	file := filepath.Join(a.Path(), allocationFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.ReplaceAll(string(b), PIDNamespace(), "pid:[1]")
	if err := os.WriteFile(file, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(job, allocID); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "raw_exec") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Take(job, allocID); err != nil {
		t.Errorf("its twin: %v", err)
	}
}

// A process is known by its number, its beginning and the boot; one that has ended is not
// alive before it is collected either.
func TestProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system shows no processes")
	}
	self := Self()
	if !self.Alive() {
		t.Fatalf("%+v is not alive", self)
	}
	for name, p := range map[string]Process{
		"nobody":       {},
		"another boot": {PID: self.PID, Started: self.Started, Boot: "other"},
		"used again":   {PID: self.PID, Started: self.Started + "1", Boot: self.Boot},
		"init":         {PID: 1, Started: self.Started, Boot: self.Boot},
		"absent":       {PID: 1 << 30, Started: self.Started, Boot: self.Boot},
	} {
		if p.Alive() {
			t.Errorf("%s: %+v is alive", name, p)
		}
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, ok := Of(cmd.Process.Pid)
	if !ok || !child.Alive() {
		t.Errorf("%+v is not alive", child)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for child.Alive() { // until it is a zombie; the test's own deadline bounds it
		runtime.Gosched()
	}
	_ = cmd.Wait() // it was killed
	if child.Alive() {
		t.Error("it lives on after it was collected")
	}
}
