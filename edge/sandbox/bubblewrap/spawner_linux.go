package bubblewrap

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// spawner is one locked thread from which all processes of a group are forked.
// It has to outlive them: PR_SET_PDEATHSIG, which bwrap's --die-with-parent
// uses, follows the thread and not the process. In cgroup v1 it is also what
// makes them members of the group from birth.
type spawner struct {
	work chan func()
	once sync.Once
	gone chan struct{}
}

// newSpawner starts the thread and runs setup on it.
func newSpawner(setup func() error) (*spawner, error) {
	s := &spawner{work: make(chan func()), gone: make(chan struct{})}
	failed := make(chan error, 1)
	started := make(chan struct{})
	go s.loop(setup, started, failed)
	<-started
	if err := <-failed; err != nil {
		<-s.gone
		return nil, err
	}
	return s, nil
}

// loop never unlocks its thread, so the thread ends with it and leaves the
// control groups. The main thread cannot end and its group owns the memory of
// the whole process: holding it, loop hands over to another thread.
func (s *spawner) loop(setup func() error, started chan<- struct{}, failed chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		other := make(chan struct{})
		go s.loop(setup, other, failed)
		<-other
		close(started)
		runtime.UnlockOSThread()
		return
	}
	close(started)
	defer close(s.gone)
	err := setup()
	failed <- err
	if err != nil {
		return
	}
	for f := range s.work {
		f()
	}
}

// do runs f on the thread and waits. It must not be called after stop.
func (s *spawner) do(f func()) {
	done := make(chan struct{})
	s.work <- func() { defer close(done); f() }
	<-done
}

// stop ends the thread.
func (s *spawner) stop() {
	s.once.Do(func() { close(s.work) })
	<-s.gone
}
