package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/legible"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/state"
)

func statusCommand(dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the link, the sandbox, what runs here and the last error",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := state.Open(*dir)
			if err != nil {
				return err
			}
			s, err := edge.AskStatus(cmd.Context(), d)
			if protocol.CodeOf(err) == protocol.CodeFailedPrecondition { // no daemon: would starting one help?
				if _, no := edge.Standing(cmd.Context(), d, link.Network{}); protocol.CodeOf(no) == protocol.CodePermissionDenied {
					return no
				}
				if end, ok := d.Ended(); ok {
					err = protocol.Errorf(protocol.CodeFailedPrecondition, "%w: %s; then start it: %s", err, end, d.Command("run"))
				}
			}
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			}
			return show(cmd.OutOrStdout(), d, s)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func show(out io.Writer, d *state.Dir, s edge.Status) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	if s.Name == "" { // the invitation named it, and the server keeps that
		line("runner", "%s, by the name of its invitation: bivouac edge list", s.Runner)
	} else {
		line("runner", "%s %s", s.Runner, s.Name)
	}
	if s.Connected {
		line("link", "connected to %s over %s, epoch %d", s.Server, strings.ToUpper(s.Transport), s.Epoch)
	} else {
		line("link", "not connected to %s", s.Server)
	}
	if s.QUICProblem != "" {
		line("", "UDP does not reach the server: %s", s.QUICProblem)
		line("", "it is tried again in %s, or now with: %s", (time.Duration(s.ProbeIn) * time.Millisecond).Round(time.Second), d.Command("probe"))
	}
	if s.PolicyProblem != "" {
		what := "PROBLEM has mistakes; the last good one is in force: "
		if _, missing := d.PolicyInForce(); missing != nil {
			what = "PROBLEM "
		}
		line("edge.hcl", "%s%s", what, s.PolicyProblem)
	}
	if s.Paused {
		line("paused", "yes; take it back with: %s", d.Command("resume"))
	}
	switch {
	case s.Boundary != "":
		line("sandbox", "%s, limits by %s, %d slot(s)", s.Boundary, cmp.Or(s.Limits, "nothing that was seen to hold"), s.Slots)
		if s.SandboxProblem != "" {
			line("", "%s; it looks again by itself", s.SandboxProblem)
		}
		if s.Freezer == "" {
			line("", "nothing here can freeze sandboxes: a turn ends when the server cannot be reached, and begins again")
		}
	default:
		line("sandbox", "none: %s", s.SandboxProblem)
	}
	if s.RefusesEgress {
		line("packages", "no sandbox here reads them (package_egress = false): turns that name registries go elsewhere")
	}
	line("actions", "%s", orNone(s.Actions))
	line("toolchains", "%s", orNone(s.Toolchains))
	if len(s.SecondKeys) > 0 {
		line("second key", "over %s; %d question(s) wait for you: %s", strings.Join(s.SecondKeys, ", "), s.Questions, d.Command("approvals"))
	}
	line("certificate", "until %s", s.CertificateEnd.Local().Format(time.RFC1123))
	for _, a := range s.Attempts {
		line("attempt", "%s %s %s %s", a.ID, a.Kind, a.State, a.Reason)
		if a.Allocation != "" {
			line("", "in an allocation of its own: %s", edge.JobStatus(a.Allocation))
		}
	}
	if s.LastError != "" {
		line("last error", "%s (%s)", s.LastError, s.LastErrorAt.Local().Format(time.RFC1123))
	}
	_, err := io.WriteString(out, legible.Text(b.String()))
	return err
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none; allow some in edge.hcl"
	}
	return strings.Join(list, ", ")
}

func pauseCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "End every sandbox now and take no work, also without a network, until resume",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := state.Open(*dir)
			if err != nil {
				return err
			}
			s, _ := supervisors("") // nil where nothing can be supervised: then nothing runs
			running, err := edge.Pause(cmd.Context(), d, s)
			if err != nil {
				return err
			}
			return said(cmd, running, "paused: no sandbox runs on this machine, and it takes no work", "paused; bivouac-edge does not run")
		},
	}
}

func resumeCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Take work again",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := state.Open(*dir)
			if err != nil {
				return err
			}
			running, err := edge.Resume(cmd.Context(), d)
			if err != nil {
				return err
			}
			return said(cmd, running, "resumed: this machine takes work", "resumed; start it with: "+d.Command("run"))
		},
	}
}

func leaveCommand(dir *string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove this machine from its server and wipe its key and state; edge.hcl stays",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := state.At(*dir)
			if err != nil {
				return err
			}
			if _, runs := d.Holder(); !force || !runs || d.Joined() {
				if wiped, err := edge.Forget(d); err != nil {
					return err
				} else if wiped {
					return said(cmd, true, "this machine had not joined; the key of a join that failed is wiped\nif bivouac edge list shows it all the same, end it there: bivouac edge revoke NAME", "")
				}
				if d, err = state.Open(*dir); err != nil {
					return err
				}
			}
			s, _ := supervisors("") // nil where nothing can be supervised: then nothing runs
			gone, err := edge.Leave(cmd.Context(), edge.LeaveParams{State: d, Supervisors: s, Sandbox: bubblewrap.New(bubblewrap.Config{CgroupParent: groupsOf(d)}), Force: force})
			if err != nil {
				return err
			}
			unit, err := unitOf(*dir)
			if err != nil {
				return err
			}
			file, err := unit.Remove(cmd.Context())
			if err != nil {
				return err
			}
			left := "left: this machine is no runner any more"
			if file != "" {
				left += "\nremoved " + file
			}
			if gone.Untold != "" {
				left += "\nthe server was not told (" + gone.Untold + ")\nand still lists it; take it out there, on a machine that is logged in: bivouac edge revoke " + cmp.Or(gone.Name, "NAME")
			}
			return said(cmd, true, legible.Text(left), "")
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "forget the runner here even when the server cannot be told")
	return cmd
}

func said(cmd *cobra.Command, running bool, yes, no string) error {
	if !running {
		yes = no
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), yes)
	return err
}
