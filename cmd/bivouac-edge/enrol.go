package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
)

// enrolFlags are how a machine that nobody sits at becomes a runner at its first start.
type enrolFlags struct {
	server, fingerprint, identity, name string
	slots                               int
}

func (f *enrolFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.server, "enrol-server", "", "where --state has no runner yet: enrol at this server, https://HOST:7401, by a workload identity of Nomad")
	cmd.Flags().StringVar(&f.fingerprint, "enrol-fingerprint", "", "fingerprint of that server's root, as bivouac-broker init prints it")
	cmd.Flags().StringVar(&f.identity, "enrol-identity-file", "", "file that Nomad keeps the identity in")
	cmd.Flags().StringVar(&f.name, "enrol-name", "", "name of this machine (default: its host name)")
	cmd.Flags().IntVar(&f.slots, "enrol-slots", owner.Default().Slots, "slots in the edge.hcl that is written where there is none")
}

// enrol does so, and nothing where no flag asks for it.
func (f *enrolFlags) enrol(ctx context.Context, cmd *cobra.Command, dir string, log *slog.Logger) error {
	var missing []string
	asked := false
	for _, x := range []struct{ flag, value string }{
		{"--enrol-server", f.server}, {"--enrol-fingerprint", f.fingerprint}, {"--enrol-identity-file", f.identity},
	} {
		asked = asked || x.value != ""
		if x.value == "" {
			missing = append(missing, x.flag)
		}
	}
	asked = asked || cmd.Flags().Changed("enrol-name") || cmd.Flags().Changed("enrol-slots")
	switch {
	case !asked:
		return nil
	case len(missing) > 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "to enrol by a workload identity, %s must be given too; see jobs/runner.nomad.hcl", strings.Join(missing, " and "))
	}
	policy := owner.Default()
	policy.Slots = f.slots
	name := f.name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return errors.Join(protocol.Errorf(protocol.CodeFailedPrecondition, "this machine has no host name: give one with --enrol-name"), err)
		}
		name = host
	}
	return edge.Enrol(ctx, edge.JoinParams{
		Server: f.server, Name: strings.ToLower(name), State: dir, Policy: policy, Version: version,
		Workload: edge.Workload{Fingerprint: f.fingerprint, File: f.identity},
	}, log)
}
