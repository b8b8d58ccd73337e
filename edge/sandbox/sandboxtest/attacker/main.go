//go:build linux

// Command attacker tries the ways out of a sandbox, one a run, for the suite in
// sandboxtest. It prints "REACHED" and what it got, or "HELD" and what stopped
// it. It judges by effect: it never asks how the sandbox was configured.
package main

import (
	"fmt"
	"os"
	"strings"
)

// way is one attempt to get out. reached says what was got.
type way func(args []string) (reached string, err error)

var ways = map[string]way{
	"read":        readFile,
	"write":       writeFile,
	"swap":        swapParent,
	"list":        listTree,
	"environment": environment,
	"descriptors": descriptors,
	"devices":     devices,

	"procfs":   procfs,
	"ptrace":   ptrace,
	"vmread":   vmRead,
	"stealfd":  stealDescriptor,
	"signal":   signal,
	"setuid":   setuid,
	"userns":   userNamespace,
	"clonens":  cloneNamespace,
	"mount":    mountTmpfs,
	"chroot":   changeRoot,
	"compat32": compat32,
	"clone3":   clone3,
	"calls":    calls,

	"unix":     dialUnix,
	"tcp":      dialTCP,
	"families": families,
	"raw":      rawSocket,
	"sockets":  workerSockets,

	"exec":       executeAnything,
	"execlocked": executeLocked,
	"forklocked": forkLocked,
	"self":       executeSelf,
	"fork":       makeProcess,
}

// services are what the suite's other parts run.
var services = map[string]func(args []string){
	"exit": exitWith, "cat": cat, "spew": spew, "sleep": sleep, "hog": hog,
	"print": printArgs, "victim": victim, "hold": hold, "fill": fill, "loopback": loopback,
	"beat": beat,
}

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	name, args := os.Args[1], os.Args[2:]
	if s, ok := services[name]; ok {
		s(args)
		return
	}
	w, ok := ways[name]
	if !ok {
		fmt.Println("no such way:", name)
		os.Exit(2)
	}
	got, err := w(args)
	if err != nil {
		fmt.Println("HELD", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	fmt.Println("REACHED", got)
}
