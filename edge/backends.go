package edge

import (
	"context"
	"slices"
	"sync"

	"bivouac/edge/owner"
	"bivouac/edge/sandbox"
)

// backends are the sandboxes of one daemon: its owner may give it another folder of
// control groups, and what was made in the one before is tidied at the end.
type backends struct {
	mu  sync.Mutex // guards all
	all []sandbox.Backend
}

func (b *backends) use(one sandbox.Backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one != nil {
		b.all = append(b.all, one)
	}
}

// now is the one in use; nil when there is none.
func (b *backends) now() sandbox.Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return nil
	}
	return b.all[len(b.all)-1]
}

func (b *backends) every() []sandbox.Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

// regroup looks at the sandbox anew where the owner's file names another folder of
// control groups. Turns that run stay where they are.
func (d *Daemon) regroup(before, now owner.Policy) {
	if before.Cgroup == now.Cgroup || d.cfg.SandboxFunc == nil || d.backends.now() == nil {
		return
	}
	d.backends.use(d.cfg.SandboxFunc())
	d.ops.Start("probe of "+now.Cgroup, func(ctx context.Context) { d.look(ctx, bootID()) })
}
