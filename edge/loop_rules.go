package edge

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/device"
	"bivouac/edge/filemode"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// rules are one edge.hcl that was found good: what the owner allows, ready to act on.
type rules struct {
	source  []byte // nil without a file
	missing error  // edge.hcl is gone, and the last good one was read instead
	policy  owner.Policy
	device  *device.Device
}

// readRules reads edge.hcl, or the last good one where that is gone. A machine that
// never had one allows no folder and no toolchain.
func readRules(dir *state.Dir) (*rules, error) {
	file, missing := dir.PolicyInForce()
	src, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the owner's policy cannot be read: %w", err)
	}
	r := &rules{source: src, missing: missing, policy: owner.Default()}
	if err == nil {
		if err := filemode.Policy(file); err != nil {
			return nil, err
		}
		if r.policy, err = owner.Parse(file, src, dir.Path()); err != nil {
			return nil, err
		}
	}
	r.device, err = device.New(r.policy.Folders, dir.Path())
	return r, err
}

// still asks the rules of now about work that began under these: what the owner
// took back meanwhile is not done. INV-10.
func (r *rules) still(now *rules, w *runnerv1.DeviceWork) error {
	if now == r {
		return nil
	}
	before, err := r.device.FolderOf(w)
	if err != nil {
		return err
	}
	after, err := now.device.FolderOf(w)
	if err == nil && after.Path != before.Path {
		err = protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine gave the folder %q another place meanwhile", before.Name)
	}
	return err
}

// tickRules takes a changed edge.hcl over. What it narrows holds at once, also for
// what runs: an effect asks again right before it happens, and a turn that sees a
// toolchain which was taken away is ended. A file with mistakes changes nothing
// and is told in status: the last good one stays in force. So does one that is gone.
func (d *Daemon) tickRules(ctx context.Context) (bool, error) {
	d.watchLack()
	old := d.rules.Load()
	file, missing := d.cfg.State.PolicyInForce()
	src, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && old.source != nil { // the copy is gone too
		return true, d.cfg.State.SaveGoodPolicy(old.source)
	}
	if err == nil && old.source != nil && bytes.Equal(src, old.source) || errors.Is(err, fs.ErrNotExist) {
		d.noteMissing(ctx, missing)
		return false, nil
	}
	now, err := readRules(d.cfg.State)
	if err != nil {
		if d.problems.text("policy") != err.Error() {
			d.log.WarnContext(ctx, "edge.hcl has mistakes: the last good one stays in force", "error", err)
		}
		d.problems.note("policy", err)
		return false, nil
	}
	if err := d.cfg.State.SaveGoodPolicy(now.source); err != nil {
		return false, err
	}
	d.rules.Store(now)
	d.noteMissing(ctx, now.missing)
	d.keys.wakeAll()
	d.log.InfoContext(ctx, "edge.hcl is in force as it is now", "folders", len(now.policy.Folders), "slots", now.policy.Slots)
	d.offersAnew()
	d.regroup(old.policy, now.policy)
	for _, t := range old.policy.Toolchains {
		if !slices.Contains(now.policy.Toolchains, t) {
			d.cutTurns(protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine took the toolchain %s away", t.Name))
		}
	}
	if now.policy.RefuseEgress && !old.policy.RefuseEgress {
		d.cutEgress()
	}
	for _, c := range old.policy.Caches {
		if !slices.ContainsFunc(now.policy.Caches, func(o owner.Cache) bool { return o.Name == c.Name && o.Path == c.Path }) {
			d.cutTurns(protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine took the cache %s away", c.Name))
		}
	}
	return false, nil
}

// noteMissing says that edge.hcl is gone, once, or that nothing is wrong with it.
func (d *Daemon) noteMissing(ctx context.Context, missing error) {
	if missing != nil && d.problems.text("policy") != missing.Error() {
		d.log.WarnContext(ctx, "edge.hcl is missing: the last good one stays in force", "error", missing)
	}
	d.problems.note("policy", missing)
}

// cutEgress ends the turns whose sandboxes have a way to a registry.
func (d *Daemon) cutEgress() {
	for _, t := range d.turns.all() {
		if hasEgress(t.begin.GetWork()) {
			d.cutOff(t.attempt, protocol.Errorf(protocol.CodePermissionDenied, "%s", noEgress))
		}
	}
}

// hasEgress reports that work names registries.
func hasEgress(work []byte) bool {
	var w runnerv1.Work
	return proto.Unmarshal(work, &w) == nil && len(w.GetTurn().GetEgress()) > 0
}

// cutTurns ends all turns: each sees every toolchain.
func (d *Daemon) cutTurns(why *protocol.Error) {
	for _, a := range d.table.all() {
		if a.kind == protocol.KindTurn {
			d.cutOff(a, why)
		}
	}
}

// WatchFile calls changed when a file may have changed: written, replaced, removed.
// It watches the folder, since editors replace files. When the system cannot watch,
// it returns at once and the slow look remains.
func WatchFile(ctx context.Context, file string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil // out of watches
	}
	defer w.Close()
	if w.Add(filepath.Dir(file)) != nil {
		return nil
	}
	settle := time.NewTimer(0)
	defer settle.Stop()
	for {
		select {
		case ev, ok := <-w.Events:
			if !ok {
				return nil
			}
			if filepath.Base(ev.Name) == filepath.Base(file) {
				settle.Reset(20 * time.Millisecond) // an editor is not done with the first write
			}
		case <-w.Errors:
			settle.Reset(0) // something was missed
		case <-settle.C:
			changed()
		case <-ctx.Done():
			return nil
		}
	}
}
