package device_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bivouac/edge/device"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

const crashCode = 86

// TestMain is also the process that dies in the middle of a write.
func TestMain(m *testing.M) {
	if dir := os.Getenv("DEVICE_CRASH_DIR"); dir != "" {
		crash(dir, os.Getenv("DEVICE_CRASH_AT"), os.Getenv("DEVICE_CRASH_PRE"))
	}
	os.Exit(m.Run())
}

func crashDevice(dir string) *device.Device {
	d, err := device.New([]device.Folder{{Name: "f", Path: dir, Actions: []string{device.Write}}})
	if err != nil {
		panic(err)
	}
	return d
}

func crashWork(pre string) *runnerv1.DeviceWork {
	w := work(device.Write, path{"path": "f/a.txt", "content": "new"})
	w.PreImageDigest = pre
	return w
}

func crash(dir, at, pre string) {
	calls := 0
	r := crashDevice(dir).Do(context.Background(), crashWork(pre), func() error {
		calls++
		if at == "before" && calls == 1 || at == "staged" && calls == 2 {
			os.Exit(crashCode)
		}
		return nil
	})
	if at == "done" && r.GetStatus() == device.Succeeded {
		os.Exit(crashCode)
	}
	os.Exit(1)
}

// A process that dies at each step of files.write leaves a file of which Inspect
// says what happened, and nothing beside it.
func TestCrashMatrixOfWrite(t *testing.T) {
	old := canonical.Digest([]byte("old"))
	for _, c := range []struct {
		at, pre string
		meddle  string // what somebody else wrote after the crash
		status  string
		file    string // afterwards; "-" is absent
	}{
		{"before", "", "", device.Failed, "-"},
		{"staged", "", "", device.Failed, "-"},
		{"done", "", "", device.Succeeded, "new"},
		{"before", old, "", device.Failed, "old"},
		{"staged", old, "", device.Failed, "old"},
		{"done", old, "", device.Succeeded, "new"},
		{"staged", old, "other", device.Unknown, "other"},
		{"done", old, "other", device.Unknown, "other"},
		{"staged", "", "other", device.Unknown, "other"},
	} {
		t.Run(c.at+"/"+c.pre+"/"+c.meddle, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "a.txt")
			if c.pre != "" {
				if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = []string{"DEVICE_CRASH_DIR=" + dir, "DEVICE_CRASH_AT=" + c.at, "DEVICE_CRASH_PRE=" + c.pre}
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != crashCode {
				t.Fatalf("the step %q was not reached: %v", c.at, err)
			}
			left, _ := filepath.Glob(filepath.Join(dir, ".bivouac-*"))
			if staged := c.at == "staged"; (len(left) == 1) != staged {
				t.Fatalf("staged files after the crash: %v", left)
			}
			if c.meddle != "" {
				if err := os.WriteFile(file, []byte(c.meddle), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if r := crashDevice(dir).Inspect(crashWork(c.pre)); r.GetStatus() != c.status {
				t.Errorf("inspected as %v, want %s", r, c.status)
			}
			got := "-"
			if b, err := os.ReadFile(file); err == nil {
				got = string(b)
			}
			if got != c.file {
				t.Errorf("the file is %q, want %q: Inspect must change nothing", got, c.file)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".bivouac-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestInterruptedReadIsAKnownFailure(t *testing.T) {
	m := newMachine(t)
	if r := m.device.Inspect(work(device.Read, path{"path": "notes/a.txt"})); r.GetStatus() != device.Failed || r.GetCode() != "unavailable" {
		t.Errorf("%v", r)
	}
}
