// Command bivouac-worker runs inside sandboxes only. Without arguments it is the
// worker of one attempt on the inherited descriptor 3; `bivouac-worker tool NAME`
// is one workspace tool in sandbox B, and `bivouac-worker outward` stands beside a
// command there that may ask for packages.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox/seccomp"
	"bivouac/edge/worker"
	"bivouac/edge/worker/outward"
	"bivouac/edge/worker/tool"
)

const (
	channelDescriptor = 3
	workspace         = "/workspace"
)

var version = "dev" // set by the build

const help = `bivouac-worker runs inside sandboxes, and nobody starts it by hand: bivouac-edge does.

Usage:
  bivouac-worker              the worker of one attempt, on the inherited descriptor 3
  bivouac-worker tool NAME    one workspace tool: its request on standard input
  bivouac-worker outward PORT=SOCKET… -- COMMAND…
                              a command with ports that lead to packages

Flags:
  -h, --help       this text
  -v, --version    the version
`

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "-h", "--help", "help":
			fmt.Print(help)
			return
		case "-v", "--version":
			fmt.Println("bivouac-worker version", version)
			return
		}
	}
	if len(os.Args) == 3 && os.Args[1] == "tool" {
		os.Exit(tool.Run(os.Args[2], workspace, os.Stdin, os.Stdout))
	}
	if len(os.Args) > 2 && os.Args[1] == outward.Verb {
		os.Exit(outward.Run(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bivouac-worker:", err)
		os.Exit(protocol.CodeOf(err).ExitCode())
	}
}

func run() error {
	if len(os.Args) != 1 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "usage: bivouac-worker, or bivouac-worker tool NAME; both are started by bivouac-edge; see bivouac-worker --help")
	}
	// A worker waits most of its life: memory is worth more than speed.
	debug.SetGCPercent(30)
	if err := seccomp.LockWorker(); err != nil {
		return err
	}
	conn, err := worker.Inherited(channelDescriptor)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // what starting up left behind
	return worker.Run(context.Background(), conn)
}
