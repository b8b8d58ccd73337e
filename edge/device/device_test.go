package device_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

// machine has an open folder "notes", a read-only folder "docs", a private
// directory inside "notes", and a secret outside of both.
type machine struct {
	device *device.Device
	notes  string
	docs   string
	secret string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	base := t.TempDir()
	m := &machine{notes: filepath.Join(base, "notes"), docs: filepath.Join(base, "docs"), secret: filepath.Join(base, "secret")}
	state := filepath.Join(m.notes, "state")
	for _, dir := range []string{m.notes, m.docs, m.secret, state, filepath.Join(m.notes, "sub"), filepath.Join(state, "deep")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		filepath.Join(m.notes, "a.txt"):         "alpha",
		filepath.Join(m.notes, "sub", "b.txt"):  "beta",
		filepath.Join(m.docs, "d.txt"):          "delta",
		filepath.Join(m.secret, "key"):          "canary-outside",
		filepath.Join(state, "device.key"):      "canary-private",
		filepath.Join(state, "deep", "journal"): "canary-private",
	} {
		if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	m.device, err = device.New([]device.Folder{
		{Name: "notes", Path: m.notes, Actions: []string{device.List, device.Read, device.Write}},
		{Name: "docs", Path: m.docs, Actions: []string{device.List, device.Read}},
	}, state)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func allowed() error { return nil }

func work(action string, args any) *runnerv1.DeviceWork {
	text, err := canonical.Marshal(args)
	if err != nil {
		panic(err)
	}
	return &runnerv1.DeviceWork{ActionId: "act_1", Action: action, Arguments: string(text), ArgumentsDigest: canonical.Digest(text)}
}

type path map[string]any

func (m *machine) do(action string, args any) *runnerv1.Result {
	return m.device.Do(context.Background(), work(action, args), allowed)
}

func (m *machine) write(p, text, pre string) *runnerv1.Result {
	w := work(device.Write, path{"path": p, "content": text})
	w.PreImageDigest = pre
	return m.device.Do(context.Background(), w, allowed)
}

func output[T any](t *testing.T, r *runnerv1.Result) T {
	t.Helper()
	var v T
	if r.GetStatus() != device.Succeeded {
		t.Fatalf("status %s: %s %s", r.GetStatus(), r.GetCode(), r.GetMessage())
	}
	if err := json.Unmarshal([]byte(r.GetOutput()), &v); err != nil {
		t.Fatalf("%v in %s", err, r.GetOutput())
	}
	return v
}

type contentOut struct {
	Content, Encoding, Digest string
	Size                      int64
	Truncated                 bool
}

type listOut struct {
	Entries []struct {
		Name, Kind string
		Size       int64
	}
	Truncated bool
}

func (l listOut) names() string {
	var out []string
	for _, e := range l.Entries {
		out = append(out, e.Name+":"+e.Kind)
	}
	return strings.Join(out, " ")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestListNamesFoldersAndHidesThePrivateOne(t *testing.T) {
	m := newMachine(t)
	if got := output[listOut](t, m.do(device.List, path{"path": ""})).names(); got != "docs:folder notes:folder" {
		t.Errorf("folders: %s", got)
	}
	if err := os.Symlink("a.txt", filepath.Join(m.notes, "z.link")); err != nil {
		t.Fatal(err)
	}
	if got := output[listOut](t, m.do(device.List, path{"path": "notes"})).names(); got != "a.txt:file sub:folder z.link:link" {
		t.Errorf("entries: %s", got)
	}
	if got := output[listOut](t, m.do(device.List, path{"path": "notes/sub/"})).names(); got != "b.txt:file" {
		t.Errorf("entries: %s", got)
	}
}

func TestReadIsBoundedAndSaysItsEncoding(t *testing.T) {
	m := newMachine(t)
	whole := output[contentOut](t, m.do(device.Read, path{"path": "notes/a.txt"}))
	if whole.Content != "alpha" || whole.Encoding != "utf-8" || whole.Truncated || whole.Digest != canonical.Digest([]byte("alpha")) {
		t.Errorf("%+v", whole)
	}
	if err := os.WriteFile(filepath.Join(m.notes, "u.txt"), []byte("aäöü"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := m.do(device.Read, path{"path": "notes/u.txt", "max_bytes": 4})
	cut := output[contentOut](t, r)
	if cut.Content != "aä" || !cut.Truncated || !r.GetTruncated() || cut.Digest != "" || cut.Size != 7 {
		t.Errorf("cut inside a rune: %+v", cut)
	}
	binary := []byte{0xff, 0x00, 0xfe}
	if err := os.WriteFile(filepath.Join(m.notes, "x.bin"), binary, 0o600); err != nil {
		t.Fatal(err)
	}
	b := output[contentOut](t, m.do(device.Read, path{"path": "notes/x.bin"}))
	if raw, _ := base64.StdEncoding.DecodeString(b.Content); b.Encoding != "base64" || string(raw) != string(binary) {
		t.Errorf("binary: %+v", b)
	}
	limited := work(device.Read, path{"path": "notes/a.txt", "max_bytes": 1000})
	limited.MaxOutputBytes = 2
	if got := output[contentOut](t, m.device.Do(context.Background(), limited, allowed)); got.Content != "al" || !got.Truncated {
		t.Errorf("the server's bound: %+v", got)
	}
}

func TestWriteReplacesOnlyWhatWasApproved(t *testing.T) {
	m := newMachine(t)
	old := canonical.Digest([]byte("alpha"))
	type digestOut struct {
		Exists bool
		Digest string
	}
	if d := output[digestOut](t, m.do(device.Digest, path{"path": "notes/a.txt"})); !d.Exists || d.Digest != old {
		t.Errorf("digest: %+v", d)
	}
	if d := output[digestOut](t, m.do(device.Digest, path{"path": "notes/new.txt"})); d.Exists || d.Digest != "" {
		t.Errorf("digest of a new file: %+v", d)
	}
	for name, c := range map[string]struct{ path, pre string }{
		"other digest":        {"notes/a.txt", canonical.Digest([]byte("beta"))},
		"should not exist":    {"notes/a.txt", ""},
		"should exist":        {"notes/new.txt", old},
		"in a missing folder": {"notes/none/new.txt", ""},
		"over a folder":       {"notes/sub", ""},
	} {
		if r := m.write(c.path, "hostile", c.pre); r.GetStatus() == device.Succeeded {
			t.Errorf("%s: it was written", name)
		}
	}
	if got := read(t, filepath.Join(m.notes, "a.txt")); got != "alpha" {
		t.Fatalf("a refused write changed the file to %q", got)
	}
	if r := m.write("notes/a.txt", "omega", old); r.GetStatus() != device.Succeeded {
		t.Fatalf("the approved write: %v", r)
	}
	info, err := os.Stat(filepath.Join(m.notes, "a.txt"))
	if err != nil || info.Mode().Perm() != 0o640 || read(t, filepath.Join(m.notes, "a.txt")) != "omega" {
		t.Errorf("after the write: %v %v", info, err)
	}
	if r := m.write("notes/sub/new.txt", "fresh", ""); r.GetStatus() != device.Succeeded || read(t, filepath.Join(m.notes, "sub", "new.txt")) != "fresh" {
		t.Errorf("a new file: %v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(m.notes, "*", ".bivouac-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The lease is asked right before the effect; without it nothing changes.
func TestNoAuthorityNoEffect(t *testing.T) {
	m := newMachine(t)
	for refuseAt := 1; refuseAt <= 3; refuseAt++ {
		calls := 0
		w := work(device.Write, path{"path": "notes/a.txt", "content": "late"})
		w.PreImageDigest = canonical.Digest([]byte("alpha"))
		r := m.device.Do(context.Background(), w, func() error {
			if calls++; calls == refuseAt {
				return protocol.Errorf(protocol.CodeLeaseExpired, "the lease has no authority")
			}
			return nil
		})
		if refuseAt <= 2 {
			if r.GetCode() != string(protocol.CodeLeaseExpired) || read(t, filepath.Join(m.notes, "a.txt")) != "alpha" {
				t.Errorf("refused at check %d: %v", refuseAt, r)
			}
		} else if r.GetStatus() != device.Succeeded || calls != 2 {
			t.Errorf("with authority: %v after %d checks", r, calls)
		}
	}
}

func TestForeignArgumentsAreRefused(t *testing.T) {
	m := newMachine(t)
	w := work(device.Read, path{"path": "notes/a.txt"})
	w.Arguments = `{"path":"docs/d.txt"}`
	if r := m.device.Do(context.Background(), w, allowed); r.GetStatus() != device.Denied {
		t.Errorf("arguments of another digest: %v", r)
	}
	for _, text := range []string{`{"path":"notes/a.txt","mode":1}`, `{"path":1}`, `{`, `{"path":"notes/a.txt"} {}`} {
		r := m.device.Do(context.Background(), &runnerv1.DeviceWork{Action: device.Read, Arguments: text}, allowed)
		if r.GetStatus() != device.Failed || r.GetCode() != string(protocol.CodeInvalidArgument) {
			t.Errorf("%s: %v", text, r)
		}
	}
	if r := m.do("files.delete", path{"path": "notes/a.txt"}); r.GetCode() != string(protocol.CodeNotFound) {
		t.Errorf("an unknown action: %v", r)
	}
}

func TestOwnerDecidesActions(t *testing.T) {
	m := newMachine(t)
	if got := strings.Join(m.device.Actions(), " "); got != "files.digest files.list files.read files.write" {
		t.Errorf("actions %s", got)
	}
	if r := m.write("docs/d.txt", "x", canonical.Digest([]byte("delta"))); r.GetStatus() != device.Denied || read(t, filepath.Join(m.docs, "d.txt")) != "delta" {
		t.Errorf("writing into a read-only folder: %v", r)
	}
	if r := m.do(device.Digest, path{"path": "docs/d.txt"}); r.GetStatus() != device.Denied {
		t.Errorf("a digest where writing is not allowed: %v", r)
	}
	if got := output[contentOut](t, m.do(device.Read, path{"path": "docs/d.txt"})); got.Content != "delta" {
		t.Errorf("reading it: %+v", got)
	}
	_, err := device.New([]device.Folder{{Name: "s", Path: filepath.Join(m.notes, "state", "deep")}}, filepath.Join(m.notes, "state"))
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != protocol.CodeInvalidArgument {
		t.Errorf("a folder inside the private directory: %v", err)
	}
}
