package state_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
)

func create(t *testing.T) *state.Dir {
	t.Helper()
	d, err := state.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestOpenWantsARunner(t *testing.T) {
	d := create(t)
	if _, err := state.Open(d.Path()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-edge join") {
		t.Errorf("before join: %v", err)
	}
	want := state.Enrolment{Server: "h:1", Name: "desk", Runner: "run_01jdv3k8x0q6v9w2m4t7y5z1ab"}
	if err := d.SaveEnrolment(want); err != nil {
		t.Fatal(err)
	}
	opened, err := state.Open(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := opened.Enrolment(); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
}

func TestDirectoryIsClosedToOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	d := create(t)
	if err := os.Chmod(d.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Create(d.Path()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.Path()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// A device key that others may have read is refused, with the command that closes it.
func TestOpenKeyIsRefused(t *testing.T) {
	d, err := state.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Key(true); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.Path(), "device.key")
	for mode, taken := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o644: false, 0o660: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := d.Key(false)
		if taken != (err == nil) || !taken && !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

func TestKeyIsMadeOnceAndCertificateMustFit(t *testing.T) {
	d, root := create(t), identitytest.NewRoot()
	if _, err := d.Key(false); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("a key before join: %v", err)
	}
	key, err := d.Key(true)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Key(true); err != nil || !again.Equal(key) {
		t.Errorf("another key: %v", err)
	}
	from, to := time.Now(), time.Now().Add(time.Hour)
	foreign := root.Certify(identitytest.NewKey(), identity.RoleRunner, "run_x", "", from, to)
	if err := d.SaveCertificate(identitytest.PEM(foreign.Leaf)); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a certificate of another key: %v", err)
	}
	own := root.Certify(key, identity.RoleRunner, "run_x", "", from, to)
	if err := d.SaveCertificate(identitytest.PEM(own.Leaf)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Certificate(); err != nil || !got.Leaf.Equal(own.Leaf) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(d.Path(), "device.key"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Certificate(); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), "bivouac-edge leave --force") {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestLockServesOneDaemon(t *testing.T) {
	d := create(t)
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock(); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("a second lock: %v", err)
	}
	release()
	old := time.Now().Add(-time.Hour)
	unfinished := filepath.Join(d.Path(), ".new-1") // of a daemon that died
	if err := errors.Join(os.WriteFile(unfinished, nil, 0o600), os.Chtimes(unfinished, old, old)); err != nil {
		t.Fatal(err)
	}
	again, err := d.Lock()
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a dead daemon left: %v", err)
	}
	again()
}

func TestPauseAndEpochLast(t *testing.T) {
	d := create(t)
	if d.Paused() || d.Epoch() != 0 {
		t.Fatal("a fresh directory is paused, or has an epoch")
	}
	if err := d.SetPaused(true); err != nil || !d.Paused() {
		t.Errorf("paused: %v", err)
	}
	if err := d.SetPaused(false); err != nil || d.Paused() {
		t.Errorf("resumed: %v", err)
	}
	take, err := d.Taking()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Taking(); err != nil || again != take || take.Nonce == "" {
		t.Errorf("an open take is %+v, then %+v, %v", take, again, err)
	}
	if err := d.Taken(take, 7); err != nil || d.Epoch() != 7 {
		t.Errorf("epoch %d, %v", d.Epoch(), err)
	}
	if next, err := d.Taking(); err != nil || next.LastEpoch != 7 || next.LastNonce != take.Nonce || next.Nonce == take.Nonce {
		t.Errorf("after %+v the next take is %+v, %v", take, next, err)
	}
}

const attemptID = protocol.AttemptID("att_01jdv3k8x0q6v9w2m4t7y5z1ab")

// INV-14: one directory has one boot nonce. INV-17: the journalled claim has no
// capability.
func TestAttemptKeepsNonceAndClaim(t *testing.T) {
	d := create(t)
	a := d.Attempt(attemptID)
	nonce, err := a.Make()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.Make(); err != nil || again != nonce {
		t.Errorf("another nonce: %v", err)
	}
	if _, ok, err := a.Claim(); ok || err != nil {
		t.Errorf("a claim before it was saved: %v", err)
	}
	begin := &supervisev1.BeginRequest{Work: []byte("w"), Terms: &runnerv1.LeaseTerms{Fence: 9, Capability: "secret-capability"}}
	if err := a.SaveClaim(begin); err != nil {
		t.Fatal(err)
	}
	if begin.GetTerms().GetCapability() == "" {
		t.Error("saving took the capability from the caller")
	}
	raw, err := os.ReadFile(filepath.Join(a.Path(), "claim"))
	if err != nil || strings.Contains(string(raw), "secret-capability") {
		t.Errorf("the capability is on the disk: %v", err)
	}
	if got, ok, err := a.Claim(); !ok || err != nil || string(got.GetWork()) != "w" || got.GetTerms().GetFence() != 9 {
		t.Errorf("%v %v %v", got, ok, err)
	}
	parent, same, err := state.OpenAttempt(a.Path())
	if err != nil || parent.Path() != d.Path() || same != a {
		t.Errorf("opened from its path: %v", err)
	}
	if list, err := d.Attempts(); err != nil || len(list) != 1 || list[0] != a {
		t.Errorf("%v %v", list, err)
	}
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	if list, _ := d.Attempts(); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	for _, path := range []string{d.Path(), filepath.Join(d.Path(), "attempts", "x"), filepath.Join(d.Path(), string(attemptID))} {
		if _, _, err := state.OpenAttempt(path); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s is no attempt: %v", path, err)
		}
	}
}

// What a sandbox was seen to do counts for one start of the machine and one
// version.
func TestSeenCountsForOneStart(t *testing.T) {
	d := create(t)
	r := sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}
	if err := d.SaveSeen("boot", "v1", r); err != nil {
		t.Fatal(err)
	}
	if got, ok := d.Seen("boot", "v1"); !ok || got != r {
		t.Errorf("%+v %v", got, ok)
	}
	for _, other := range [][2]string{{"boot2", "v1"}, {"boot", "v2"}, {"", "v1"}} {
		if _, ok := d.Seen(other[0], other[1]); ok {
			t.Errorf("believed for %v", other)
		}
	}
}

func TestWipeKeepsThePolicyAlone(t *testing.T) {
	d := create(t)
	if _, err := d.Key(true); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Attempt(attemptID).Make(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Policy(), []byte("slots = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Path(), ".new-1"), []byte("a key that a dead process was writing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Wipe(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(d.Path())
	if err != nil || len(left) != 1 || left[0].Name() != "edge.hcl" {
		t.Errorf("left: %v %v", left, err)
	}
}

// A hint names --state where the person must.
func TestCommandNamesTheDirectory(t *testing.T) {
	def, other := t.TempDir(), filepath.Join(t.TempDir(), "it's here")
	t.Setenv("BIVOUAC_EDGE_STATE", def)
	for path, want := range map[string]string{
		def:   "bivouac-edge run",
		other: "bivouac-edge run --state '" + strings.ReplaceAll(other, "'", `'\''`) + "'",
	} {
		d, err := state.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Command("run"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
