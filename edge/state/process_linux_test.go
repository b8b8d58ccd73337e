package state

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// executionsVariable makes a process of this test execute itself so many times.
const executionsVariable = "BIVOUAC_SUITE_EXECUTIONS"

// TestAliveWhileItExecutes: a process that executes another program from any thread of it
// is alive all the time, though its first thread is not. INV-14.
func TestAliveWhileItExecutes(t *testing.T) {
	if left, err := strconv.Atoi(os.Getenv(executionsVariable)); err == nil {
		executeAgain(left)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAliveWhileItExecutes$")
	cmd.Env = []string{executionsVariable + "=50"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, ok := Of(cmd.Process.Pid)
	if !ok {
		t.Fatalf("%+v is not there", child)
	}
	for child.Alive() {
		runtime.Gosched()
	}
	var how syscall.WaitStatus
	got, err := syscall.Wait4(child.PID, &how, syscall.WNOHANG, nil)
	if err != nil || got != child.PID || how.ExitStatus() != lastOfAll {
		t.Errorf("it was taken for ended while it was not: %d, %v, %v", got, how, err)
	}
	_ = cmd.Process.Kill() // it has ended
}

// lastOfAll is the code with which the last program of the process ends.
const lastOfAll = 7

// executeAgain executes this test anew on a thread that is not the first.
func executeAgain(left int) {
	if left == 0 {
		os.Exit(lastOfAll)
	}
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		go executeAgain(left) // this thread is held
		select {}
	}
	_ = syscall.Exec(os.Args[0], os.Args, []string{executionsVariable + "=" + strconv.Itoa(left-1)})
	os.Exit(1)
}
