package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	runnerstate "bivouac/edge/state"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// checkEdge reads what the owner of this machine allows, in edge.hcl or, before there
// is one, in --allow-folder. Nothing has started yet: a mistake there is refused with
// its place, and is no reason to join anew.
func (d *dev) checkEdge() error {
	if d.noEdge {
		return nil
	}
	state, file := d.path("edge"), d.path("edge", "edge.hcl")
	_, err := os.Stat(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		if _, err := owner.Load(file, state); err != nil {
			return protocol.Errorf(protocol.CodeOf(err), "%w\nnothing was started, and the runner stays what it is: mend that, or add --no-edge to start without it", err)
		}
		return nil
	}
	if d.runnerID() != "" { // --allow-folder says nothing any more
		if s, err := runnerstate.At(d.path("edge")); err == nil {
			if _, missing := s.PolicyInForce(); missing != nil {
				fmt.Fprintf(d.err, "note: %s\n", plain(missing.Error()))
			}
		}
		return nil
	}
	policy := owner.Default()
	for _, flag := range d.folders {
		f, err := owner.FolderFlag(flag)
		if err != nil {
			return err
		}
		policy.Folders = append(policy.Folders, f)
	}
	return owner.CheckFlags(policy, state)
}

// startEdge joins this machine where it has not, and runs it. Only one that the server
// does not know any more (revoked, or not in the state that it runs on) joins anew: a
// runner that ends for any other reason keeps its key, its journal and its name, and
// says why it ended.
func (d *dev) startEdge(ctx context.Context, g *errgroup.Group, c *client.Client) error {
	if err := d.forgetUnknown(ctx, c); err != nil {
		return err
	}
	if err := d.joinEdge(ctx, c); err != nil {
		return err
	}
	ended := make(chan *proc, 1)
	p, err := d.tree.start(func(p *proc) { ended <- p }, "bivouac-edge", "run", "--state", d.path("edge"), "--end-turns")
	if err != nil {
		return err
	}
	err = d.tree.until(ctx, "bivouac-edge", func() error { return d.connected(ctx, c, p) })
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return err
	case errors.Is(err, errEdgeEnded): // others are served without it
		fmt.Fprintf(d.err, "  runner   does not run; its log ends with:\n%s\n", tail(p.log))
		return nil
	default:
		fmt.Fprintf(d.err, "  runner   not connected yet, and goes on trying: %v\n           why: bivouac-edge doctor --state %s\n", err, shellword.Quote(d.path("edge")))
	}
	g.Go(func() error { d.tellEnd(ctx, ended); return nil })
	return nil
}

// forgetUnknown wipes a runner that the server says it has not, so that it can join
// anew. Its edge.hcl stays.
func (d *dev) forgetUnknown(ctx context.Context, c *client.Client) error {
	id := d.runnerID()
	if id == "" {
		return nil
	}
	res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
	if err != nil {
		return err
	}
	for _, r := range res.GetRunners() {
		if r.GetId() == id && r.GetState() == "ACTIVE" {
			return nil
		}
	}
	fmt.Fprintf(d.err, "note: the server does not take the runner %s of this machine any more; it joins anew\n", plain(id))
	return d.tree.once(ctx, "bivouac-edge", "leave", "--force", "--state", d.path("edge"))
}

// errEdgeEnded is a runner that ended before it was connected.
var errEdgeEnded = protocol.Errorf(protocol.CodeUnavailable, "the runner on this machine ended")

// joinEdge enrols this machine with a code of its own. It may repeat.
func (d *dev) joinEdge(ctx context.Context, c *client.Client) error {
	state := d.path("edge")
	if d.runnerID() != "" {
		d.noteFolders()
		return nil
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "this-machine"
	}
	host := name
	code, err := c.Runners.CreateJoinCode(ctx, &apiv1.CreateJoinCodeRequest{Name: name})
	for n := 2; protocol.CodeOf(err) == protocol.CodeAlreadyExists && n < 100; n++ { // of a machine that left and could not say so
		name = fmt.Sprintf("%s-%d", host, n)
		code, err = c.Runners.CreateJoinCode(ctx, &apiv1.CreateJoinCodeRequest{Name: name})
	}
	if err != nil {
		return err
	}
	args := []string{"join", "https://" + d.runner, code.GetCode(), "--name", name, "--state", state}
	if _, err := os.Stat(filepath.Join(state, "edge.hcl")); err == nil { // it left, and its owner's file stayed
		d.noteFolders()
	} else {
		for _, folder := range d.folders {
			args = append(args, "--allow-folder", folder)
		}
	}
	return d.tree.once(ctx, "bivouac-edge", args...)
}

// noteFolders says where folders are named after the first start.
func (d *dev) noteFolders() {
	if len(d.folders) > 0 {
		fmt.Fprintf(d.err, "note: --allow-folder is for the first start; say it in %s now\n", d.path("edge", "edge.hcl"))
	}
}

// runnerID of this machine; empty when it has not joined.
func (d *dev) runnerID() string { return d.enrolment().Runner }

// enrolled is which runner this machine is, and the server that it dials.
type enrolled struct {
	Runner string `json:"runner_id"`
	Server string `json:"server"`
}

// enrolment of this machine's runner; empty when it has not joined.
func (d *dev) enrolment() (e enrolled) {
	b, err := os.ReadFile(d.path("edge", "enrolment.json"))
	if err != nil || json.Unmarshal(b, &e) != nil {
		return enrolled{}
	}
	return e
}

// connected reports this machine's own runner, and says what it offers.
func (d *dev) connected(ctx context.Context, c *client.Client, p *proc) error {
	select {
	case <-p.done:
		return errEdgeEnded
	default:
	}
	res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
	if err != nil {
		return err
	}
	for _, r := range res.GetRunners() {
		if r.GetId() == d.runnerID() && r.GetConnected() {
			fmt.Fprintf(d.err, "  runner   %s, sandbox %s\n", plain(r.GetName()), sandboxOf(r))
			return nil
		}
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the runner is not connected yet")
}

// tellEnd says that the runner is gone; server and broker serve others too.
func (d *dev) tellEnd(ctx context.Context, ended <-chan *proc) {
	select {
	case <-ctx.Done():
	case p := <-ended:
		if ctx.Err() == nil {
			fmt.Fprintf(d.err, "the runner on this machine ended; server and broker go on, and the next bivouac dev brings it back:\n%s\n", tail(p.log))
		}
	}
}
