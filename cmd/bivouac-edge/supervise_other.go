//go:build !linux

package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"bivouac/edge"
	"bivouac/edge/protocol"
)

const noSandbox = "sandboxes need Linux and this is " + runtime.GOOS + "; this machine offers fixed device actions only"

// supervisors do not exist here.
func supervisors(string) (edge.Spawner, string) { return nil, noSandbox }

func superviseCommand(*string) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			return protocol.Errorf(protocol.CodeIncompatible, "%s", noSandbox)
		},
	}
}
