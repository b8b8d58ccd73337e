package supervise

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/twin"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/workspace"
)

// unmade is an attempt whose workspace is being made for as long as a test wants: the
// blob of its folder is a pipe.
type unmade struct {
	*rig
	blob   []byte
	name   string // of the pipe
	pipe   *os.File
	killed chan struct{} // closed when the attempt has been asked to end
}

// killing is a backend, and its groups, of which it is known that they are killed.
type killing struct {
	sandbox.Backend
	killed func()
}

type killingGroup struct {
	sandbox.Group
	killed func()
}

func (k *killing) Group(ctx context.Context, id string, l sandbox.Limits) (sandbox.Group, error) {
	g, err := k.Backend.Group(ctx, id, l)
	return &killingGroup{g, k.killed}, err
}

func (k *killingGroup) Kill(ctx context.Context) error {
	k.killed()
	return k.Group.Kill(ctx)
}

// making begins such an attempt, with a packed folder that is being read. Where its
// worker is a function, that runs.
func making(t *testing.T, cfg Config, blob []byte) *unmade {
	t.Helper()
	u := &unmade{blob: blob, killed: make(chan struct{})}
	backend, began := cfg.Backend.(*seeing), make(chan struct{})
	cfg.Backend = &seeing{&killing{backend.Backend, sync.OnceFunc(func() { close(u.killed) })}, backend.report}
	if work := cfg.WorkerFunc; work != nil {
		cfg.WorkerFunc = func(ctx context.Context, conn net.Conn) error {
			close(began)
			return work(ctx, conn)
		}
	} else {
		close(began)
	}
	u.rig = start(t, cfg)
	turn := &runnerv1.TurnWork{Trust: protocol.TrustUntrusted, WorkspaceDigest: u.rig.blob(u.blob)}
	u.name = filepath.Join(cfg.Dir, "blobs", hexDigest(turn.WorkspaceDigest))
	must(t, os.Remove(u.name))
	must(t, unix.Mkfifo(u.name, 0o600))
	s := scripted(script([]string{"sleep 0s"}))
	s.AttemptId = cfg.Attempt.String()
	var err error
	turn.Spec, err = deterministic.Marshal(s)
	must(t, err)
	u.handOverWork(turn, terms(20*time.Hour, 40*time.Hour))
	u.pipe, err = os.OpenFile(u.name, os.O_WRONLY, 0) // when the supervisor has opened it
	must(t, err)
	t.Cleanup(func() { u.pipe.Close() }) // before the supervisor is stopped, which reads it
	<-began
	return u
}

// made lets the workspace be finished, with what comes through the pipe.
func (u *unmade) made(b []byte) {
	u.t.Helper()
	_, err := u.pipe.Write(b)
	must(u.t, err)
	must(u.t, u.pipe.Close())
}

// endsThen breaks it off when the attempt has been asked to end.
func (u *unmade) endsThen() {
	u.t.Helper()
	<-u.killed
	must(u.t, u.pipe.Close())
}

// ended checks how the attempt ended, and whether it had started.
func (u *unmade) ended(status string, code protocol.Code, message string, started bool) []*runnerv1.Record {
	u.t.Helper()
	res, all := u.result()
	if res.Status != status || res.Code != string(code) || !strings.Contains(res.Message, message) {
		u.t.Errorf("the attempt ended with %s %q %q", res.Status, res.Code, res.Message)
	}
	if got := slices.ContainsFunc(all, isStarted); got != started {
		u.t.Errorf("started: %t, want %t: %v", got, started, all)
	}
	return all
}

func isStarted(r *runnerv1.Record) bool { return r.GetStarted() != nil }

// While the workspace of an attempt is made its worker runs already, and gets no answer.
// However that ends, the attempt's result says why, and it has started only when the
// workspace stands.
func TestWhileTheWorkspaceIsMade(t *testing.T) {
	var packed bytes.Buffer
	_, err := workspace.Pack(t.Context(), repository(t, map[string]string{"a.txt": "one\n"}), &packed)
	must(t, err)
	folder := packed.Bytes()
	succeeded := func(t *testing.T, u *unmade) []*runnerv1.Record {
		t.Helper()
		u.made(u.blob)
		return u.ended(protocol.ResultSucceeded, "", "", true)
	}
	t.Run("it stands", func(t *testing.T) {
		u := making(t, virtual(t, &broker{}), folder)
		if seq := u.hello().JournalSeq; seq != 0 {
			t.Errorf("%d records before the workspace stands", seq)
		}
		all := succeeded(t, u)
		if !isStarted(all[0]) || len(toolResults(t, all)) != 1 {
			t.Errorf("the records are %v", all)
		}
		u.acknowledge(all)
	})
	t.Run("its files are others", func(t *testing.T) {
		u := making(t, virtual(t, &broker{}), folder)
		u.made(append(slices.Clone(u.blob), 0))
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.CodeDataLoss, "has the digest", false))
	})
	t.Run("its files are missing", func(t *testing.T) {
		u := &unmade{rig: start(t, virtual(t, &broker{}))}
		s, err := deterministic.Marshal(scripted(script(nil)))
		must(t, err)
		u.handOverWork(&runnerv1.TurnWork{Trust: protocol.TrustUntrusted, Spec: s, PatchDigests: []string{strings.Repeat("0", 64)}}, nil)
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.CodeFailedPrecondition, "was not brought", false))
	})
	t.Run("the worker ends first", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		cfg.WorkerFunc = func(context.Context, net.Conn) error { return nil }
		u := making(t, cfg, folder)
		u.endsThen()
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.ResultInterrupted, "The worker ended", false))
	})
	t.Run("the worker cannot be started", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		cfg.WorkerFunc, cfg.WorkerPath = nil, "/absent"
		cfg.Backend = &seeing{twin.New(twin.Config{}), *seen(cfg)}
		u := making(t, cfg, folder)
		u.endsThen()
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.CodeInvalidArgument, "cannot be executed", false))
	})
	t.Run("it is stopped", func(t *testing.T) {
		u := making(t, virtual(t, &broker{}), folder)
		stopped := make(chan error, 1)
		go func() {
			_, err := u.client.Stop(t.Context(), &supervisev1.StopRequest{Reason: "the person cancelled the turn"})
			stopped <- err
		}()
		u.endsThen()
		must(t, <-stopped)
		u.acknowledge(u.ended(protocol.ResultCancelled, protocol.CodeCancelled, "the person cancelled the turn", false))
	})
	t.Run("its allocation ends", func(t *testing.T) {
		cfg, ends := virtual(t, &broker{}), make(chan struct{})
		cfg.HandOver = ends
		u := making(t, cfg, folder)
		close(ends)
		u.endsThen()
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.ResultInterrupted, errHandedOver.Message, false))
	})
	t.Run("its time is over", func(t *testing.T) {
		cfg, later := virtual(t, &broker{}), atomic.Int64{}
		clock := cfg.Elapsed
		cfg.Elapsed = func() time.Duration { return clock() + time.Duration(later.Load()) }
		u := making(t, cfg, folder)
		later.Store(int64(2 * time.Hour))
		u.endsThen()
		u.acknowledge(u.ended(protocol.ResultFailed, protocol.CodeDeadlineExceeded, errDeadline.Message, false))
	})
	t.Run("it is frozen and goes on", func(t *testing.T) { // INV-20
		cfg := virtual(t, &broker{})
		seen(cfg).Freezer = "twin"
		u := making(t, cfg, folder)
		u.renew(terms(time.Millisecond, time.Hour))
		waitFor(t, "the freeze", func() bool { return u.hello().Frozen })
		u.made(u.blob)
		u.renew(terms(time.Hour, time.Hour))
		all := u.ended(protocol.ResultSucceeded, "", "", true)
		if got := moves(all); !slices.Equal(got, []string{"frozen", "running"}) || slices.IndexFunc(all, isStarted) != 2 {
			t.Errorf("moves %v in %v", got, all)
		}
		u.acknowledge(all)
	})
	t.Run("it loses its authority", func(t *testing.T) { // INV-20
		u := making(t, virtual(t, &broker{}), folder)
		u.renew(terms(time.Millisecond, time.Hour))
		u.endsThen()
		waitFor(t, "the loss", func() bool { return u.hello().Finished })
		if seq := u.hello().JournalSeq; seq != 0 {
			t.Errorf("%d records of an attempt that was lost before it had started", seq)
		}
	})
	t.Run("its supervisor is killed", func(t *testing.T) { // INV-14: nothing was begun, and it begins
		u := making(t, virtual(t, &broker{}), folder)
		kept := filepath.Join(t.TempDir(), "journal")
		must(t, os.CopyFS(kept, os.DirFS(u.cfg.journalDir()))) // as a kill at this moment leaves it
		u.cancel()
		u.endsThen()
		u.stop()
		must(t, os.RemoveAll(u.cfg.journalDir()))
		must(t, os.CopyFS(u.cfg.journalDir(), os.DirFS(kept)))
		must(t, os.Remove(u.name))
		must(t, os.WriteFile(u.name, u.blob, 0o600))

		cfg := virtual(t, &broker{})
		cfg.Dir, cfg.Attempt = u.cfg.Dir, u.cfg.Attempt
		again := &unmade{rig: start(t, cfg)}
		if again.hello().Begun {
			t.Error("it has begun before")
		}
		_, err := again.client.Begin(t.Context(), u.begin)
		must(t, err)
		again.acknowledge(again.ended(protocol.ResultSucceeded, "", "", true))
	})
}
