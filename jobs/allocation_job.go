package jobs

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/jobs/workload"
)

// Names within the job of an attempt.
const (
	jobPrefix = "bivouac-"
	groupName = "attempt"
	taskName  = "supervise"
)

// What the supervisor and the worker need beside the sandboxes.
const (
	supervisorMillis = 250
	supervisorMB     = 256
	supervisorDiskMB = 64
)

const (
	mib = 1 << 20
	// leastRun is how long a task may live at least before Nomad's own bound ends it.
	leastRun = 10 * time.Minute
	// killIn is how long a task that is stopped may take to hand its turn over.
	killIn = 30 * time.Second
	// lostAfter is longer than any outage: a node out of reach keeps its task, and no
	// second one is started for it.
	lostAfter = 8760 * time.Hour
)

// jobOf an attempt. It is pinned by pool and node, and Nomad is told to run it once: never
// to restart or reschedule it, nor to replace one out of reach. That Nomad can do otherwise
// is why a supervisor claims before its first effect. No secret is in it, and its logs stay
// in the attempt's own folder.
func jobOf(a Allocation, rule workload.Rule, on *api.Node, deployment string) *api.Job {
	job := api.NewBatchJob(a.Job, a.Job, "", api.JobDefaultPriority)
	job.Region = nil // of the server that is asked
	job.Namespace, job.NodePool, job.Datacenters = new(rule.Namespace), new(on.NodePool), []string{"*"}
	job.Meta = map[string]string{metaDeployment: deployment, metaAttempt: a.Attempt}
	job.Constraints = []*api.Constraint{api.NewConstraint("${node.unique.id}", "=", on.ID)}
	task := api.NewTask(taskName, "raw_exec").
		SetConfig("command", rule.ProgramPath()).
		SetConfig("args", []string{"supervise", "--allocation", a.Job, "--state", rule.StatePath()})
	task.KillSignal, task.KillTimeout = "SIGTERM", new(killIn)
	task.LogConfig = &api.LogConfig{Disabled: new(true), MaxFiles: new(1), MaxFileSizeMB: new(1)} // counted against the disk all the same
	task.RestartPolicy = never()
	task.Resources = &api.Resources{CPU: new(megahertz(a.CPUMillis+supervisorMillis, on)), MemoryMB: new(int(ceil(a.MemoryBytes, mib)) + supervisorMB)}
	group := api.NewTaskGroup(groupName, 1).AddTask(task)
	group.RestartPolicy = never()
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Interval: new(time.Duration(0)), Delay: new(time.Duration(0)), MaxDelay: new(time.Duration(0)), DelayFunction: new(""), Unlimited: new(false)}
	group.Disconnect = &api.DisconnectStrategy{LostAfter: new(lostAfter), Replace: new(false), Reconcile: new(api.ReconcileOptionKeepOriginal)}
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(int(ceil(a.DiskBytes, mib)) + supervisorDiskMB), Migrate: new(false), Sticky: new(false)}
	group.MaxRunDuration = new(max(leastRun, a.Longest))
	return job.AddTaskGroup(group)
}

func never() *api.RestartPolicy {
	return &api.RestartPolicy{Attempts: new(0), Mode: new("fail"), Interval: new(time.Minute), Delay: new(time.Second)}
}

// megahertz of a node that are so many thousandths of its cores: Nomad counts in them.
func megahertz(millis int64, on *api.Node) int {
	return int(max(1, ceil(millis*core(on.NodeResources), 1000)))
}

// core is what one core of a node is, in MHz.
func core(has *api.NodeResources) int64 {
	if has != nil && has.Cpu.TotalCpuCores > 0 && has.Cpu.CpuShares >= int64(has.Cpu.TotalCpuCores) {
		return has.Cpu.CpuShares / int64(has.Cpu.TotalCpuCores)
	}
	return 1000
}

func ceil(n, of int64) int64 { return (n + of - 1) / of }
