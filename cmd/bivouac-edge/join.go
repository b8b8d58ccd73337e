package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/legible"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/service"
	"bivouac/edge/state"
)

func joinCommand(dir *string) *cobra.Command {
	var name string
	var asService bool
	var folders, toolchains, keys []string
	policy := owner.Default()
	cmd := &cobra.Command{
		Use:   "join URL CODE",
		Short: "Enrol this machine with the code of an invitation (bivouac edge invite)",
		Long: "Enrols this machine and writes edge.hcl, its owner's policy, which allows nothing on the machine but what the flags say.\n" +
			"It ends only after the server has taken a first authenticated call. Repeating it with the same code is safe.",
		Example: "  bivouac-edge join https://bivouac.example.org:7401 join_… --allow-folder notes=/home/me/notes:rw",
		Args:    usage.Exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, flag := range folders {
				f, err := owner.FolderFlag(flag)
				if err != nil {
					return err
				}
				policy.Folders = append(policy.Folders, f)
			}
			for _, flag := range toolchains {
				t, err := owner.ToolchainFlag(flag)
				if err != nil {
					return err
				}
				policy.Toolchains = append(policy.Toolchains, t)
			}
			for _, flag := range keys {
				policy.SecondKeys = append(policy.SecondKeys, owner.KeyFlag(flag))
			}
			unit, err := unitOf(*dir)
			if err == nil && asService { // before anything is asked for or written
				err = unit.Available(cmd.Context())
			}
			if err != nil {
				return err
			}
			e, err := edge.Join(cmd.Context(), edge.JoinParams{
				Server: args[0], Code: args[1], Name: name, State: *dir, Policy: policy, Version: version,
			})
			if err != nil {
				return err
			}
			if asService {
				return serving(cmd, unit, e)
			}
			return joined(cmd.OutOrStdout(), *dir, e)
		},
	}
	cmd.Flags().BoolVar(&asService, "service", false, "also keep it running: write a systemd unit of this user and start it; leave removes it")
	cmd.Flags().StringVar(&name, "name", "", "name of this machine (default: the invitation's)")
	cmd.Flags().StringArrayVar(&folders, "allow-folder", nil, "name=/path[:r|:rw], a folder that agents may read, or also write; may be repeated")
	cmd.Flags().StringArrayVar(&toolchains, "toolchain", nil, "name=/path, a host folder that sandboxed code sees read-only; may be repeated")
	cmd.Flags().StringArrayVar(&keys, "second-key", nil, "files.list, files.read, files.write or turn: work that waits for your own yes on this machine; may be repeated")
	cmd.Flags().IntVar(&policy.Slots, "slots", policy.Slots, "turns that may run at once in sandboxes; 0 refuses them")
	return cmd
}

// unitOf is the systemd unit of a runner of this program.
func unitOf(dir string) (service.Unit, error) {
	d, err := state.At(dir)
	if err != nil {
		return service.Unit{}, err
	}
	self, err := os.Executable()
	return service.Unit{State: d, Program: self}, err
}

// serving starts the unit of a machine that has just joined, and names what it wrote.
func serving(cmd *cobra.Command, unit service.Unit, e state.Enrolment) error {
	file, err := unit.Install(cmd.Context())
	if err != nil {
		return protocol.Errorf(protocol.CodeOf(err), "the machine has joined as runner %s, but its service does not run: %w; start it by hand with `%s`", e.Runner, err, unit.State.Command("run"))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "joined %s as runner %s\nits policy is %s\n%swrote %s and started it: systemctl --user status %s\nit runs while you are logged in; to run always: sudo loginctl enable-linger $USER\n",
		e.Server, e.Runner, unit.State.Policy(), lacking(unit.State), file, unit.Name())
	return err
}

func joined(out io.Writer, dir string, e state.Enrolment) error {
	d, err := state.Open(dir)
	if err != nil {
		return err
	}
	p, err := owner.Load(d.Policy(), d.Path())
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "joined %s as runner %s\n", e.Server, e.Runner)
	for _, f := range p.Folders { // as paths were understood
		fmt.Fprintf(&b, "agents may use %s as %s: %s\n", f.Path, f.Name, strings.Join(f.Actions, ", "))
	}
	b.WriteString(lacking(d))
	fmt.Fprintf(&b, "its policy is %s; start it with: %s\n", d.Policy(), d.Command("run"))
	_, err = io.WriteString(out, legible.Text(b.String()))
	return err
}

// lacking is the line about what turns in sandboxes lack on this machine, where its
// owner allows some.
func lacking(d *state.Dir) string {
	p, err := owner.Load(d.Policy(), d.Path())
	if s, _ := supervisors(""); err != nil || p.Slots == 0 || s == nil {
		return ""
	}
	why := edge.Needs{Worker: beside("bivouac-worker")}.Missing()
	if _, err := exec.LookPath("bwrap"); err != nil && why == "" {
		why = "bubblewrap, which makes sandboxes, is not found: `sudo apt-get install bubblewrap`"
	}
	if why == "" {
		return ""
	}
	return "it takes no turns in sandboxes until this is mended: " + why + "\n"
}
