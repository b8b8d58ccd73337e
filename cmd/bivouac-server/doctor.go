package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/usage"
	"bivouac/server"
)

func (o *options) doctor() *cobra.Command {
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what a server of this configuration stands on, and say what mends what is wrong",
		Long: `Looks at configuration, data directory, disk, database, ports, identity and the way
to the broker, from this machine. It changes nothing and works while no server
runs; bivouac doctor asks a running one, and its broker, for more. Addresses, files and
database are those of the last start, which it says; a flag wins over them. Without --data
it looks at that of bivouac dev where there is no other. It ends with 0 unless something
does not work; with --strict also a warning counts.`,
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.remember(cmd); err != nil {
				return err
			}
			if err := o.settle(cmd); err != nil {
				return err
			}
			o.followDev(cmd)
			r := server.Examine(cmd.Context(), o.config)
			return r.Show(cmd.OutOrStdout(), asJSON, strict)
		},
	}
	o.addresses(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}

// followDev takes directory and addresses of bivouac dev for what nothing says.
func (o *options) followDev(cmd *cobra.Command) {
	if o.file != "" {
		return
	}
	given := cmd.Flags().Changed
	o.config.DataDir = devdir.Part(o.config.DataDir, "server", given("data"))
	if devdir.Addresses(o.config.DataDir) != nil {
		o.config.Starter = devdir.Command(filepath.Dir(o.config.DataDir))
	}
	for flag, of := range map[string]struct {
		name  string
		value *string
	}{"public": {"public", &o.config.PublicAddress}, "runners": {"runner", &o.config.RunnerAddress}, "broker": {"broker", &o.config.BrokerAddress}} {
		if kept := devdir.Addresses(o.config.DataDir)[of.name]; kept != "" && !given(flag) {
			*of.value = kept
		}
	}
}
