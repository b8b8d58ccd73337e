package state

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one process of one boot of this machine. Its number alone would be used
// again: with when it began, and in which boot, nobody else is ever taken for it.
type Process struct {
	PID     int    `json:"pid,omitempty"`
	Started string `json:"started,omitempty"` // in ticks since the boot, as the system writes it
	Boot    string `json:"boot,omitempty"`
}

// Self is this process. It stays the same when it executes another program.
func Self() Process {
	p, _ := Of(os.Getpid())
	return p
}

// Of is the process that has a number now; false: nobody has it. It may have ended, and not
// be collected yet.
func Of(pid int) (p Process, ok bool) {
	started, _, ok := lookAt(pid)
	return Process{PID: pid, Started: started, Boot: boot()}, ok
}

// Alive reports that the process runs. One that has ended and was not collected yet
// does not; where the system shows no processes, none does.
func (p Process) Alive() bool {
	if p.PID <= 1 || p.Started == "" || p.Boot == "" || p.Boot != boot() {
		return false
	}
	started, ended, ok := lookAt(p.PID)
	return ok && !ended && started == p.Started
}

// lookAt reads what the system says of a process.
func lookAt(pid int) (started string, ended, ok bool) {
	// The name, in brackets, may hold anything: what counts comes after the last one.
	const state, threads, starttime = 0, 17, 19
	for {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return "", false, false
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) <= starttime {
			return "", false, false
		}
		// Where another than the first thread executes a program, the first one has ended
		// while that one still stands, and is replaced by it: in between it has no thread.
		gone := fields[state] == "Z" || fields[state] == "X"
		if gone && fields[threads] == "0" {
			continue
		}
		return fields[starttime], gone && fields[threads] == "1", true
	}
}

// boot names this start of the machine.
func boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// PIDNamespace is in which this process is; empty where there are none. Numbers of
// processes mean something within one alone.
func PIDNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}
