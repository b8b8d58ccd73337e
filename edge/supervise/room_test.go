package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/sized"
)

// A command that writes 10 GB, to one file, to many, to its home or to its output,
// ends with a word that says why, the host keeps its space, and the attempt goes on:
// the next command works, and the change that there was is in the patch.
func TestTenGigabytes(t *testing.T) {
	for _, disk := range []string{sandbox.DiskSized, sandbox.DiskWatched} {
		t.Run(disk, func(t *testing.T) {
			cfg := real(t, &broker{})
			if disk == sandbox.DiskSized && seen(cfg).Disk != disk {
				t.Skip("no sized file system can be mounted here")
			}
			seen(cfg).Disk = disk
			cfg.NarrowFunc = func(*runnerv1.SandboxLimits) *runnerv1.SandboxLimits {
				return &runnerv1.SandboxLimits{DiskBytes: 64 << 20, OutputBytes: 1 << 20}
			}
			const tidied = "rm -rf big* ~/big; " // a full disk can be tidied by the next command
			commands := []string{
				"echo two > a.txt; head -c 10G /dev/zero",
				"head -c 10G /dev/zero > big",
				tidied + "i=0; while head -c 20M /dev/zero > big$i; do i=$((i+1)); done; exit 1",
				tidied + "head -c 10G /dev/zero > ~/big",
				tidied + "cat a.txt; echo three > b.txt",
			}
			before, err := sized.Free(cfg.Dir)
			must(t, err)
			r := start(t, cfg)
			r.handOver(scripted(script(commands)), repository(t, map[string]string{"a.txt": "one\n"}), nil)
			res, all := r.result()
			after, err := sized.Free(cfg.Dir)
			must(t, err)
			// Others write there meanwhile; each of the commands would write 10 GB.
			if used := before - after; used > 9<<30 {
				t.Errorf("the host's disk lost %d MiB", used>>20)
			}
			got := toolResults(t, all)
			if res.Status != "succeeded" || len(got) != len(commands) {
				t.Fatalf("results %v of %+v", got, res)
			}
			if got[0].Code != "output_limit" || !strings.Contains(got[0].Text, "more than 1048576 bytes of output") {
				t.Errorf("10 GB of output: %s %.300s", got[0].Code, got[0].Text)
			}
			for i, g := range got[1:4] {
				// Where the disk is watched, a burst into home ends with the command.
				if g.Code != "disk_limit" || !strings.Contains(g.Text, "no space left: files may have") {
					t.Errorf("10 GB of files, %d: %s %.300s", i, g.Code, g.Text)
				}
			}
			if got[4].Text != "two\n" {
				t.Errorf("the next command: %v", got[4])
			}
			if p := r.patch(res.PatchDigest); !strings.Contains(p, "+two") || !strings.Contains(p, "+three") {
				t.Errorf("the patch lacks a part:\n%.2000s", p)
			}
			r.acknowledge(all)
			if left, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(left), cfg.Dir) {
				t.Errorf("a mount is left: %v", err) // INV-18
			}
		})
	}
}

// What an earlier supervisor left mounted is taken away by the next. INV-18.
func TestVolumeOfADeadSupervisor(t *testing.T) {
	cfg := real(t, &broker{})
	if seen(cfg).Disk != sandbox.DiskSized {
		t.Skip("no sized file system can be mounted here")
	}
	must(t, os.MkdirAll(cfg.filesDir(), 0o700))
	if _, err := sized.Mount(t.Context(), cfg.workDir(), cfg.filesDir(), leastRoom); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(cfg.filesDir(), "left"), []byte("x"), 0o600))
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"ls -a .."})), "", nil)
	res, all := r.result()
	if got := toolResults(t, all); res.Status != "succeeded" || strings.Contains(got[0].Text, "left") {
		t.Errorf("result %+v, %v", res, got)
	}
	r.acknowledge(all)
}

// A host without room refuses the turn with a reason, and keeps what it has.
func TestNoRoomOnTheHost(t *testing.T) {
	cfg := real(t, &broker{})
	if seen(cfg).Disk != sandbox.DiskSized {
		t.Skip("no sized file system can be mounted here")
	}
	small, err := sized.Mount(t.Context(), t.TempDir(), cfg.Dir, 64<<20) // the state directory's disk
	must(t, err)
	t.Cleanup(func() {
		if err := small.Close(); err != nil {
			t.Error(err)
		}
	})
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"true"})), "", nil)
	res, all := r.result()
	if res.Status != "failed" || res.Code != string(protocol.CodeFailedPrecondition) || !strings.Contains(res.Message, "MiB left") {
		t.Errorf("result %+v", res)
	}
	r.acknowledge(all)
}

// A journal on a full disk says so, keeps all that it has acknowledged, and goes on
// when there is room.
func TestJournalOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	small, err := sized.Mount(t.Context(), t.TempDir(), dir, 4<<20)
	if protocol.CodeOf(err) == protocol.CodeFailedPrecondition {
		t.Skip("NOT tested here: ", err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := small.Close(); err != nil {
			t.Error(err)
		}
	})
	journal := filepath.Join(dir, "journal")
	kept, err := openRecords(journal, "")
	must(t, err)
	filler := filepath.Join(dir, "filler")
	free, err := sized.Free(dir)
	must(t, err)
	must(t, os.WriteFile(filler, bytes.Repeat([]byte("x"), int(free-1<<20)), 0o600))
	text := []byte(strings.Repeat("x", 64<<10))
	var acknowledged int64
	for err == nil {
		var seq int64
		if seq, err = kept.append(&runnerv1.Record{Kind: &runnerv1.Record_LoopEvent{LoopEvent: text}}, true); err == nil {
			acknowledged = seq
		}
	}
	if acknowledged == 0 || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("after %d records: %v", acknowledged, err)
	}
	must(t, os.Remove(filler))
	kept.journal.Close()
	again, err := openRecords(journal, "")
	must(t, err)
	defer again.journal.Close()
	last := again.journal.Last()
	if last < acknowledged {
		t.Errorf("%d records are left of %d", last, acknowledged)
	}
	seq, err := again.append(&runnerv1.Record{Kind: &runnerv1.Record_LoopEvent{LoopEvent: []byte("goes on")}}, true)
	if err != nil || seq != last+1 {
		t.Errorf("the next record is %d after %d, %v", seq, last, err)
	}
	all, err := again.batch(last)
	if err != nil || len(all) != 1 || string(all[0].GetLoopEvent()) != "goes on" {
		t.Errorf("it reads as %v, %v", all, err)
	}
}
