//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// system is the product as processes, and one person's client.
type system struct {
	bin, dir string
	api      *client.Client
	procs    []*exec.Cmd
}

func start(ctx context.Context, bin string) (*system, error) {
	abs, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bivouac-bench-")
	if err != nil {
		return nil, err
	}
	s := &system{bin: abs, dir: dir}
	if err := s.bringUp(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *system) bringUp(ctx context.Context) error {
	notes := filepath.Join(s.dir, "notes")
	if err := os.MkdirAll(notes, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(notes, "note.txt"), []byte("remember the milk\n"), 0o600); err != nil {
		return err
	}
	args := []string{"dev", "--data", filepath.Join(s.dir, "state"), "--no-edge", "--public", "127.0.0.1:0", "--runner", "127.0.0.1:0",
		"--broker", "127.0.0.1:0", "--model", "127.0.0.1:0", "--model-script", "test/bench/testdata/model.hcl"}
	first := time.Now()
	dev, err := s.spawn("bivouac", args...)
	if err != nil {
		return err
	}
	if err := s.untilReady(ctx); err != nil {
		return err
	}
	report("dev_first_start_to_ready", time.Since(first).Seconds(), "s", 1, false)
	s.end(dev)
	again := time.Now()
	if _, err := s.spawn("bivouac", args...); err != nil {
		return err
	}
	if err := s.untilReady(ctx); err != nil {
		return err
	}
	report("dev_start_to_ready", time.Since(again).Seconds(), "s", 1, false)
	return s.join(ctx, notes)
}

func (s *system) join(ctx context.Context, notes string) error {
	code, err := s.api.Runners.CreateJoinCode(ctx, &apiv1.CreateJoinCodeRequest{Name: "bench"})
	if err != nil {
		return err
	}
	words := strings.Fields(code.GetCommand())
	state := filepath.Join(s.dir, "edge")
	began := time.Now()
	join := s.command(words[0], append(words[1:], "--state", state, "--allow-folder", "notes="+notes)...)
	if out, err := join.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", code.GetCommand(), err, out)
	}
	if _, err := s.spawn("bivouac-edge", "run", "--state", state); err != nil {
		return err
	}
	if err := s.until(ctx, func() error {
		res, err := s.api.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
		if err != nil {
			return err
		}
		if len(res.GetRunners()) != 1 || !res.GetRunners()[0].GetConnected() || res.GetRunners()[0].GetSlots() == 0 {
			return errors.New("the runner is not usable yet")
		}
		return nil
	}); err != nil {
		return err
	}
	report("join_to_usable", time.Since(began).Seconds(), "s", 3, false)
	return nil
}

func (s *system) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Env = append(os.Environ(), "BIVOUAC_CONFIG="+filepath.Join(s.dir, "login"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (s *system) spawn(name string, args ...string) (*exec.Cmd, error) {
	cmd := s.command(name, args...)
	log, err := os.OpenFile(filepath.Join(s.dir, name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.procs = append(s.procs, cmd)
	return cmd, nil
}

// untilReady logs in with what bivouac dev wrote, and waits until a turn could
// be taken.
func (s *system) untilReady(ctx context.Context) error {
	return s.until(ctx, func() error {
		out, err := os.ReadFile(filepath.Join(s.dir, "bivouac.out"))
		if err != nil {
			return err
		}
		if i := bytes.LastIndex(out, []byte("ready after")); i < 0 || bytes.Count(out, []byte("ready after")) < len(s.procs) {
			return fmt.Errorf("bivouac dev is not ready: %s", out)
		}
		b, err := os.ReadFile(filepath.Join(s.dir, "login", "login.json"))
		if err != nil {
			return err
		}
		var l struct{ Server, Token string }
		if err := json.Unmarshal(b, &l); err != nil {
			return err
		}
		if s.api != nil {
			s.api.Close()
		}
		s.api, err = client.New(client.Config{URL: l.Server, Token: l.Token})
		return err
	})
}

func (s *system) until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited a minute: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *system) end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
}

func (s *system) stop() {
	for i := len(s.procs) - 1; i >= 0; i-- {
		if s.procs[i].ProcessState == nil {
			s.end(s.procs[i])
		}
	}
	os.RemoveAll(s.dir)
}

// resident finds the processes of this run with a name, and their memory in MB.
func (s *system) resident(name string) (mb float64, found bool) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		exe, err := os.Readlink(filepath.Join(d, "exe"))
		if err != nil || filepath.Base(exe) != name {
			continue
		}
		status, err := os.ReadFile(filepath.Join(d, "status"))
		if err != nil || (name != "bivouac-worker" && !s.ours(d)) {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				n, err := strconv.ParseFloat(strings.Fields(kb)[0], 64)
				if err == nil {
					mb, found = max(mb, n/1024), true
				}
			}
		}
	}
	return mb, found
}

func (s *system) ours(proc string) bool {
	argv, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	return err == nil && bytes.Contains(argv, []byte(s.dir))
}
