package main

import (
	"cmp"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/usage"
	"bivouac/server/broker/assembly"
)

func doctorCommand(data *string) *cobra.Command {
	var o assembly.Options
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what a broker of this directory stands on, and say what mends what is wrong",
		Long: `Looks at keyring, broker.hcl, paths, caps, providers and tools, port and disk, from this
machine. Where broker.hcl has a vault block it logs in at that server as the broker does,
asks for each of its rights, and ends that login again; where it has a consul block it asks
Consul about every destination with the broker's token. It changes nothing, uses no other
credential and works while no broker runs; bivouac doctor asks a running one for its feed
too, and which keys are missing or were refused. Without --data it looks at that of bivouac
dev where there is no other; the addresses of the last start are known, and a flag wins over
them. It ends with 0 unless something does not work; with --strict also a warning counts.`,
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Data = directory(cmd, *data)
			var err error
			if o.Again, err = remember(cmd, o.Data); err != nil {
				return err
			}
			if at := devdir.Addresses(o.Data); at != nil {
				o.Again = devdir.Command(filepath.Dir(o.Data))
				if len(o.Servers) == 0 {
					o.Servers = []string{at["runner"]}
				}
				o.Listen = cmp.Or(o.Listen, at["broker"])
			}
			r := assembly.Examine(cmd.Context(), o)
			return r.Show(cmd.OutOrStdout(), asJSON, strict)
		},
	}
	cmd.Flags().StringVar(&o.Config, "config", "", "configuration (default broker.hcl in --data)")
	cmd.Flags().StringVar(&o.Listen, "listen", "", "address, TCP and UDP (default: that of the configuration)")
	cmd.Flags().StringArrayVar(&o.Servers, "server", nil, "runner listener whose feed is followed (default: those of the configuration; repeatable)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}
