// Command bivouac is how a person speaks to Bivouac.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"bivouac/cmd/bivouac/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	code := cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
