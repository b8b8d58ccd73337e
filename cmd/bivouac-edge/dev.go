package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// Commands that a person may mean for the runner of bivouac dev, when this user has no
// other one here, and those that bivouac dev gives itself.
var (
	forDev = []string{"approvals", "approve", "deny", "doctor", "pause", "probe", "resume", "status"}
	notDev = []string{"leave", "run"}
)

// findDev turns a command to the runner of bivouac dev where nobody named a directory
// and the usual one has none: to pause a machine must not need a path. Commands that
// would get in bivouac dev's way name the directory and do nothing.
func findDev(cmd *cobra.Command, dir *string) error {
	if cmd.Flags().Changed("state") || os.Getenv("BIVOUAC_EDGE_STATE") != "" {
		return nil
	}
	own, err := state.At(*dir)
	if err != nil || own.Joined() || own.HasKey() {
		return nil
	}
	devs, err := state.At(filepath.Join(devdir.Default(), "edge"))
	if err != nil || !devs.Joined() {
		return nil
	}
	switch {
	case slices.Contains(forDev, cmd.Name()):
		*dir = devs.Path()
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "note: the runner of bivouac dev, in %s\n", devs.Path())
		return err
	case slices.Contains(notDev, cmd.Name()):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "there is no runner in %s; that of bivouac dev, which `bivouac dev` starts, is meant with `%s`", own.Path(), devs.Command(cmd.Name()))
	}
	return nil
}
