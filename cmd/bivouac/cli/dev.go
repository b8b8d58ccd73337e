package cli

import "github.com/spf13/cobra"

func (a *app) devCommand() *cobra.Command { return &cobra.Command{Use: "dev"} }
