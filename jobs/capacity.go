package jobs

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
	"bivouac/jobs/workload"
)

// Room is what the sandboxes of an attempt may use on a node. The zero value is that
// nobody knows.
type Room struct{ CPUMillis, MemoryBytes, DiskBytes int64 }

// largest of each.
func (r Room) largest(o Room) Room {
	return Room{max(r.CPUMillis, o.CPUMillis), max(r.MemoryBytes, o.MemoryBytes), max(r.DiskBytes, o.DiskBytes)}
}

// capacity is as Nomad counts: MHz and MB.
type capacity struct{ mhz, memory, disk int64 }

func (c capacity) less(o capacity) capacity {
	return capacity{c.mhz - o.mhz, c.memory - o.memory, c.disk - o.disk}
}

// hasInAll is what a node gives to tasks while none runs; false: Nomad does not say it.
func hasInAll(has *api.NodeResources, kept *api.NodeReservedResources) (c capacity, known bool) {
	if has == nil || has.Cpu.CpuShares <= 0 || has.Memory.MemoryMB <= 0 || has.Disk.DiskMB <= 0 {
		return c, false
	}
	c = capacity{has.Cpu.CpuShares, has.Memory.MemoryMB, has.Disk.DiskMB}
	if kept != nil {
		c = c.less(capacity{int64(kept.Cpu.CpuShares), int64(kept.Memory.MemoryMB), int64(kept.Disk.DiskMB)})
	}
	return c, true
}

// roomIn is the most that a job of an attempt may ask for its sandboxes: see jobOf.
func roomIn(c capacity, has *api.NodeResources) Room {
	return Room{
		CPUMillis:   c.mhz*1000/core(has) - supervisorMillis,
		MemoryBytes: (c.memory - supervisorMB) * mib,
		DiskBytes:   (c.disk - supervisorDiskMB) * mib,
	}
}

// takenBy the task of runners on each node that one runs on.
func takenBy(job *api.Job, rule workload.Rule, has *api.NodeResources) (c capacity) {
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if t.Name != rule.Task || t.Resources == nil {
				continue
			}
			r := t.Resources
			if r.CPU != nil {
				c.mhz = int64(*r.CPU)
			}
			if r.Cores != nil && *r.Cores > 0 {
				c.mhz = int64(*r.Cores) * core(has)
			}
			if r.MemoryMB != nil {
				c.memory = int64(*r.MemoryMB)
			}
			if g.EphemeralDisk != nil && g.EphemeralDisk.SizeMB != nil {
				c.disk = int64(*g.EphemeralDisk.SizeMB)
			}
		}
	}
	return c
}

// Measured is what a node has for one turn while no other is there, its pool, and the most
// of each that a node of the pool has. The zero value is that it is not known.
type Measured struct {
	Most, Largest Room
	Pool          string
}

// measure adds by machine what the nodes have for turns of a rule beside its runner.
func (n *Nomad) measure(ctx context.Context, rule workload.Rule, nodes []*api.NodeListStub, into map[string]Measured) error {
	job, _, err := n.api.Jobs().Info(rule.Job, query(ctx, rule.Namespace))
	if err = n.failed("reading job "+rule.Job, capability(rule.Namespace, "read-job"), err); notFound(err) {
		job = &api.Job{}
	} else if err != nil {
		return err
	}
	largest := map[string]Room{}
	for _, node := range nodes {
		c, known := hasInAll(node.NodeResources, node.ReservedResources)
		if !known {
			continue
		}
		most := roomIn(c.less(takenBy(job, rule, node.NodeResources)), node.NodeResources)
		largest[node.NodePool] = largest[node.NodePool].largest(most)
		into[machineOn(rule, node.ID)] = Measured{Most: most, Pool: node.NodePool}
	}
	for _, node := range nodes {
		if is, known := into[machineOn(rule, node.ID)]; known {
			is.Largest = largest[is.Pool]
			into[machineOn(rule, node.ID)] = is
		}
	}
	return nil
}

// Measured is what is known of the node of a machine that enrolled by a workload identity.
func (w *Watch) Measured(machine string) Measured {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.listed) > staleAfter {
		return Measured{}
	}
	return w.rooms[machine]
}

// Rooms are what is known of the nodes of a tenant's rules, whether a runner has enrolled
// there or not.
func (w *Watch) Rooms(tenant protocol.TenantID) (all []Measured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.listed) > staleAfter {
		return nil
	}
	for _, rule := range w.cfg.Rules {
		if rule.Tenant != tenant {
			continue
		}
		for machine, is := range w.rooms {
			at := strings.LastIndexByte(machine, '/')
			if machineOn(rule, machine[at+1:]) == machine && (rule.Pool == "" || rule.Pool == is.Pool) {
				all = append(all, is)
			}
		}
	}
	return all
}

// fits refuses a job that its node could never hold: Nomad would keep it, and with it those
// that come for the same node.
func fits(want Allocation, on *api.Node) error {
	all, known := hasInAll(on.NodeResources, on.ReservedResources)
	if !known {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "Nomad does not say how much node %s has: see `nomad node status %s`", on.Name, short(on.ID))
	}
	room := roomIn(all, on.NodeResources)
	for _, r := range []struct {
		unit             string
		asks, most, each int64
	}{
		{"MiB of memory", want.MemoryBytes, room.MemoryBytes, mib},
		{"thousandths of a core", want.CPUMillis, room.CPUMillis, 1},
		{"MiB of disk", want.DiskBytes, room.DiskBytes, mib},
	} {
		if r.asks > r.most {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "it asks %d %s, and node %s of pool %s has %d for a turn: %s",
				ceil(r.asks, r.each), r.unit, on.Name, cmp.Or(on.NodePool, api.NodePoolDefault), max(0, r.most/r.each), askLess)
		}
	}
	return nil
}
