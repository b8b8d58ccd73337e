//go:build linux

package jobs_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/jobs/workload"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// started are the allocations of a server with its own token, and what they need.
type started struct {
	*jobs.Allocations
	t       *testing.T
	server  *nomadserver.Server
	client  *nomadserver.Client
	cfg     jobs.Config
	kept    *recorder
	program string
}

// allocating has a Nomad with one node, and a server's token as setup makes it.
func allocating(t *testing.T, p engine.Program) *started {
	t.Helper()
	s := &started{t: t, server: nomadserver.Start(t, p)}
	s.client = s.server.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
	setUp(t, s.server)
	file, _ := s.server.Token(t, "server", site.ServerRules())
	s.program = s.client.Path("..", "bivouac-edge")
	s.behaves("exec sleep 3600")
	cfg := admin(t, s.server)
	cfg.Token, cfg.TokenFile, cfg.MaxAllocations = "", file, 50
	cfg.Rules = slices.Clone(rules)
	cfg.Rules[0].Program = s.program
	s.cfg = cfg
	carrier, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	s.kept = &recorder{to: carrier.Transport}
	cfg.Transport = s.kept
	s.Allocations = of(cfg, own)
	return s
}

// behaves is what the task's program does from now on.
func (s *started) behaves(script string) {
	s.t.Helper()
	if err := os.WriteFile(s.program, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// job is a new one, of a small attempt.
func (s *started) job() jobs.Allocation {
	a := protocol.NewID[protocol.AttemptKind](time.Now(), rand.Reader)
	return jobs.Allocation{Job: protocol.AllocationJob(a, 1), Attempt: a.String(), Machine: machineOf(s.client.Node),
		CPUMillis: 100, MemoryBytes: 16 << 20, DiskBytes: 16 << 20, Longest: time.Hour}
}

// beside starts a job that takes most of the node's memory, and returns as much again.
func (s *started) beside() int64 {
	s.t.Helper()
	node, _, err := s.server.Root().Nodes().Info(s.client.Node, nil)
	s.must(err)
	first := s.job()
	first.MemoryBytes = node.NodeResources.Memory.MemoryMB * 6 / 10 << 20
	s.behaves("exec sleep 3600")
	s.must(s.Start(s.t.Context(), first))
	s.says(first.Job, "it runs")
	s.t.Cleanup(func() { s.must(s.Stop(context.Background(), jobs.Allocated{Job: first.Job, Namespace: "agents"})) })
	return first.MemoryBytes
}

// listed waits until a job is as it should be, and returns it.
func (s *started) listed(what string, job string, is func(jobs.Allocated) bool) (found jobs.Allocated) {
	s.t.Helper()
	until(s.t, what, func() error {
		all, err := s.List(s.t.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(a jobs.Allocated) bool { return a.Job == job })
		if i < 0 {
			return fmt.Errorf("not among %+v", all)
		}
		if found = all[i]; !is(found) {
			return fmt.Errorf("%+v", found)
		}
		return nil
	})
	return found
}

func (s *started) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// says waits until what is explained of a job has these words.
func (s *started) says(job, words string) {
	s.t.Helper()
	until(s.t, words, func() error {
		said, err := s.Explain(s.t.Context(), machineOf(s.client.Node), job)
		if err == nil && !strings.Contains(said.Text, words) {
			err = fmt.Errorf("%+v", said)
		}
		if err == nil && said.Remedy == "" {
			s.t.Errorf("%q has no command that helps", said.Text)
		}
		return err
	})
}

// A job is made once, runs, is ended and removed, by the token that setup makes. It is told
// to run once whatever happens, has no secret, and no other deployment touches it.
func TestAllocationLife(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := allocating(t, p)
		want := s.job()
		s.says(want.Job, "there is no such job")
		begun := time.Now()
		s.must(s.Start(t.Context(), want))
		registered := time.Since(begun)
		s.says(want.Job, "it runs")
		t.Logf("bench name=nomad_job_registered value=%d unit=ms", registered.Milliseconds())
		t.Logf("bench name=nomad_job_running value=%d unit=ms", time.Since(begun).Milliseconds())
		s.must(s.Start(t.Context(), want)) // the same once more
		s.says(want.Job, "it runs")
		running := s.listed("running", want.Job, func(a jobs.Allocated) bool { return !a.Waits && !a.Stopped && !a.Ended })
		s.kept.save(t, "allocation running", s.client.Path(".."))

		foreign := of(s.cfg, others)
		if err := foreign.Start(t.Context(), want); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
			t.Errorf("another deployment's: %v", err)
		}
		if all, err := foreign.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("another deployment lists %+v, %v", all, err)
		}
		job, _, err := s.server.Root().Jobs().Info(want.Job, &api.QueryOptions{Namespace: "agents"})
		s.must(err)
		g := job.TaskGroups[0]
		if *job.Version != 0 || *g.Count != 1 || *g.RestartPolicy.Attempts != 0 || *g.ReschedulePolicy.Attempts != 0 || *g.ReschedulePolicy.Unlimited ||
			*g.Disconnect.Replace || *g.MaxRunDuration != time.Hour || len(g.Tasks[0].Env) != 0 || !*g.Tasks[0].LogConfig.Disabled {
			t.Errorf("%+v %+v", job, g)
		}
		if node, _, err := s.server.Root().Nodes().Info(s.client.Node, nil); err != nil || *g.Tasks[0].Resources.CPU < int(node.NodeResources.Cpu.CpuShares/int64(node.NodeResources.Cpu.TotalCpuCores))*350/1000 {
			t.Errorf("%d MHz of a node with %+v, %v", *g.Tasks[0].Resources.CPU, node.NodeResources.Cpu, err)
		}
		s.must(s.Stop(t.Context(), running))
		ended := s.listed("ended", want.Job, func(a jobs.Allocated) bool { return a.Stopped && a.Ended })
		s.must(s.Stop(t.Context(), ended))
		until(t, "removed", func() error {
			all, err := s.List(t.Context())
			if err == nil && len(all) > 0 {
				err = fmt.Errorf("%+v", all)
			}
			return err
		})
		s.must(s.Stop(t.Context(), ended)) // it is gone already
	})
}

// What becomes of a job is told without being asked for, by the watch.
func TestAllocationHints(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := allocating(t, p)
		w := jobs.NewWatch(s.cfg, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		defer func() { stop(); <-done }()
		a := jobs.NewAllocations(s.cfg, w, func() (string, error) { return own, nil })
		until(t, "the first list", func() error {
			if said := w.Unknown(); said.Text != "" {
				return fmt.Errorf("%s", said.Text)
			}
			return nil
		})
		want := s.job()
		before := a.Hints()
		s.must(a.Start(t.Context(), want))
		begun := time.Now()
		until(t, "a hint", func() error {
			if a.Hints() == before {
				return fmt.Errorf("nothing is told")
			}
			return nil
		})
		t.Logf("bench name=nomad_hint value=%d unit=ms", time.Since(begun).Milliseconds())
		until(t, "the bell", func() error {
			select {
			case <-a.Bell():
				return nil
			default:
				return fmt.Errorf("it was not rung")
			}
		})
	})
}

// Each thing that keeps an allocation from running is told apart, in our words.
func TestAllocationStates(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := allocating(t, p)
		for _, c := range []struct {
			name, program string
			change        func(*jobs.Allocation)
			is            func(jobs.Allocated) bool
			says          string
		}{
			{"ended", "exit 0", nil, func(a jobs.Allocated) bool { return a.Ended }, "its task has ended"},
			{"failed", "exit 3", nil, func(a jobs.Allocated) bool { return a.Ended }, "it failed on its node"},
			{"no room", "exit 0", func(a *jobs.Allocation) { a.MemoryBytes = s.beside() }, func(a jobs.Allocated) bool { return a.Waits }, "not enough left of: memory"},
		} {
			s.behaves(c.program)
			want := s.job()
			if c.change != nil {
				c.change(&want)
			}
			s.must(s.Start(t.Context(), want))
			if got := s.listed(c.name, want.Job, c.is); !strings.Contains(got.Said.Text, c.says) || got.Said.Remedy == "" {
				t.Errorf("%s: %+v", c.name, got)
			}
			s.says(want.Job, c.says)
			s.kept.save(t, "allocation "+c.name, s.client.Path(".."))
			s.must(s.Stop(t.Context(), jobs.Allocated{Job: want.Job, Namespace: "agents"}))
		}
		s.behaves("exec sleep 3600")
		eligible(t, s.server, s.client, false)
		want := s.job()
		s.must(s.Start(t.Context(), want))
		s.says(want.Job, "its node takes nothing new, is down, or has left the node pool")
		s.listed("ineligible", want.Job, func(a jobs.Allocated) bool { return a.Waits })
		s.kept.save(t, "allocation ineligible", s.client.Path(".."))
		eligible(t, s.server, s.client, true)
		s.says(want.Job, "it runs")
		s.client.Kill(t)
		s.says(want.Job, "Nomad does not know whether it runs")
		s.listed("unknown", want.Job, func(a jobs.Allocated) bool { return !a.Waits && !a.Ended })
		s.kept.save(t, "allocation unknown", s.client.Path(".."))
		s.client.Start(t)
		s.says(want.Job, "it runs")
	})
}

// A request that is refused says what is lacking and is known not to have been carried
// out; with the right it is. One that nobody answers is not known to be either.
func TestAllocationRefused(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := allocating(t, p)
		weak, _ := s.server.Token(t, "weak", "node {\n policy = \"read\"\n}\nnamespace \"agents\" {\n capabilities = [\"list-jobs\", \"read-job\"]\n}\n")
		cfg := s.cfg
		cfg.TokenFile = weak
		want := s.job()
		reads := of(cfg, own)
		if err := reads.Start(t.Context(), want); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "register-job") || !strings.Contains(err.Error(), "policies weak)") || !strings.HasPrefix(protocol.Mend(err, ""), "(umask 077; nomad acl token create") {
			t.Errorf("a token that only reads: %v", err)
		}
		s.must(s.Start(t.Context(), want))
		if err := reads.Stop(t.Context(), jobs.Allocated{Job: want.Job, Namespace: "agents"}); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "deregister-job") {
			t.Errorf("ending by a token that only reads: %v", err)
		}
		for name, wrong := range map[string]func(*jobs.Config, *jobs.Allocation){
			"another pool": func(c *jobs.Config, _ *jobs.Allocation) { c.Rules[0].Pool = "gpu" },
			"unknown node": func(_ *jobs.Config, a *jobs.Allocation) {
				a.Machine = machineOf("ffffffff-7e1a-3f65-9c1e-5a2b6d7e8f90")
			},
			"other machine": func(_ *jobs.Config, a *jobs.Allocation) { a.Machine = "other/job/task/node" },
			"no namespace": func(c *jobs.Config, a *jobs.Allocation) {
				c.Rules[0].Namespace = "gone"
				a.Machine = workload.Identity{Namespace: "gone", Job: "bivouac-runner", Task: "edge", Node: s.client.Node}.Machine()
				c.TokenFile, c.Token = "", jobs.Secret(s.server.Management())
			},
			"too large": func(_ *jobs.Config, a *jobs.Allocation) { a.MemoryBytes = 1 << 50 },
			"bad spec":  func(_ *jobs.Config, a *jobs.Allocation) { a.MemoryBytes = -1 << 40 },
		} {
			cfg, bad := s.cfg, s.job()
			cfg.Rules = slices.Clone(cfg.Rules)
			wrong(&cfg, &bad)
			err := of(cfg, own).Start(t.Context(), bad)
			if code := protocol.CodeOf(err); code != protocol.CodeFailedPrecondition && code != protocol.CodeNotFound {
				t.Errorf("%s: %s %v", name, code, err)
			}
			t.Logf("%s: %v", name, err)
		}
		s.server.Stop(t)
		if err := s.Start(t.Context(), s.job()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition && protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("Nomad is down: %v", err)
		}
		if _, err := s.List(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("listing while Nomad is down: %v", err)
		}
		s.server.Start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		until(t, "back", func() error { return s.Start(ctx, want) })
	})
}
