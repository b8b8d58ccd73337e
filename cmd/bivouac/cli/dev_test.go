//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// devRun is one `bivouac dev` as a person runs it, from the built binary.
type devRun struct {
	t    *testing.T
	dir  string // state, login and a folder
	bin  string
	cmd  *exec.Cmd
	out  string // file with what it printed
	done chan struct{}
}

func newDev(t *testing.T) *devRun {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole deployment")
	}
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := &devRun{t: t, dir: t.TempDir(), bin: bin}
	if err := os.Mkdir(filepath.Join(d.dir, "notes"), 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *devRun) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(d.bin, "bivouac"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir, "BIVOUAC_CONFIG=" + filepath.Join(d.dir, "login"), "TMPDIR=" + os.TempDir()}
	cmd.Dir = d.dir
	return cmd
}

// args of bivouac dev on free ports, unless others are given later.
func (d *devRun) args(more ...string) []string {
	return append([]string{"dev", "--data", filepath.Join(d.dir, "state"), "--public", "127.0.0.1:0", "--runner", "127.0.0.1:0",
		"--broker", "127.0.0.1:0", "--model", "127.0.0.1:0"}, more...)
}

// start runs it until it says that everything is up.
func (d *devRun) start(more ...string) {
	d.t.Helper()
	f, err := os.CreateTemp(d.dir, "dev-*.out")
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	cmd := d.command(d.args(more...)...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its end is judged by whoever waits for it
		close(done)
	}()
	d.cmd, d.out, d.done = cmd, f.Name(), done
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-done
	})
	d.until("it is up", func() bool { return strings.Contains(d.said(), "Ctrl-C ends everything.") })
}

func (d *devRun) said() string {
	b, err := os.ReadFile(d.out)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

func (d *devRun) until(what string, holds func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("not after a minute: %s\n%s", what, d.said())
		}
		if d.cmd.ProcessState != nil && what == "it is up" {
			d.t.Fatalf("bivouac dev ended:\n%s", d.said())
		}
	}
}

// wait waits for its end and returns the exit code.
func (d *devRun) wait() int {
	d.t.Helper()
	select {
	case <-d.done:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		d.t.Fatalf("it did not end within a minute\n%s", d.said())
		return 0
	}
}

// cli runs a command of the person.
func (d *devRun) cli(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	var out, errOut bytes.Buffer
	cmd := d.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		d.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func (d *devRun) must(args ...string) string {
	d.t.Helper()
	out, errOut, code := d.cli(args...)
	if code != 0 {
		d.t.Fatalf("bivouac %v: exit code %d\n%s%s", args, code, out, errOut)
	}
	return out
}

// descendants are the processes below it now, by number and name.
func (d *devRun) descendants() map[int]string {
	d.t.Helper()
	parents, names := map[int]int{}, map[int]string{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		name, rest, ok := strings.Cut(string(b[bytes.IndexByte(b, '(')+1:]), ") ")
		if f := strings.Fields(rest); ok && len(f) > 1 && f[0] != "Z" {
			parents[pid], _ = strconv.Atoi(f[1])
			names[pid] = name
		}
	}
	below := map[int]string{}
	for pid := range parents {
		for at := parents[pid]; at > 1; at = parents[at] {
			if at == d.cmd.Process.Pid {
				below[pid] = names[pid]
				break
			}
		}
	}
	return below
}

// gone waits until none of the processes runs: an identity is number and name.
func (d *devRun) gone(all map[int]string) {
	d.t.Helper()
	d.until("every child has ended", func() bool {
		for pid, name := range all {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			if err == nil && bytes.Contains(b, []byte("("+name+") ")) && !bytes.Contains(b, []byte(") Z ")) {
				return false
			}
		}
		return true
	})
}

// busy gives the runner a command that goes on, where a sandbox is possible.
func (d *devRun) busy() {
	d.t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		d.t.Log("SKIPPED LOUDLY: bubblewrap is not installed, so no sandbox had to end")
		return
	}
	repo := filepath.Join(d.dir, "repo")
	if out, err := exec.Command("git", "init", "-q", repo).CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
	d.must("run", "--workspace", repo, "--detach", "run: sleep 600")
	d.until("a command runs in a sandbox", func() bool {
		for _, name := range d.descendants() {
			if name == "sleep" {
				return true
			}
		}
		return false
	})
}

func (d *devRun) addresses() map[string]string {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.dir, "state", "addresses.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	all := map[string]string{}
	if err := json.Unmarshal(b, &all); err != nil {
		d.t.Fatal(err)
	}
	return all
}

// Ctrl-C ends every process, sandboxes too, and the next start on the same data
// has the same addresses, agents, login and conversation; kill -9 ends them as well.
func TestDevEndsWithEveryChild(t *testing.T) {
	d := newDev(t)
	d.start("--allow-folder", "notes="+filepath.Join(d.dir, "notes")+":rw")
	kept := d.addresses()
	d.must("chat", "which folders do you have?")
	d.busy()
	all := d.descendants()
	if len(all) < 3 {
		t.Fatalf("server, broker and edge should run: %v", all)
	}
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C\n%s", code, d.said())
	}
	d.gone(all)

	d.start("--allow-folder", "notes="+filepath.Join(d.dir, "notes"))
	if now := d.addresses(); len(now) != 4 || now["public"] != kept["public"] || now["runner"] != kept["runner"] || now["broker"] != kept["broker"] || now["model"] != kept["model"] {
		t.Errorf("the second start has other addresses: %v, then %v", kept, now)
	}
	if !strings.Contains(d.said(), "note: --allow-folder is for the first start") {
		t.Errorf("a flag that does nothing is not said:\n%s", d.said())
	}
	if list := d.must("agents", "list"); !regexp.MustCompile(`(?m)^assistant +1 `).MatchString(list) {
		t.Errorf("the agents:\n%s", list)
	}
	d.must("chat", "which folders do you have?")
	if out := d.must("sessions"); strings.Count(out, " assistant ") != 1 {
		t.Errorf("the conversation did not go on where it was:\n%s", out)
	}
	d.busy()
	all = d.descendants()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.wait()
	d.gone(all)
}

// A part that dies ends the whole, which says which, and what its log said last.
func TestDevEndsWhenAChildDies(t *testing.T) {
	d := newDev(t)
	d.start("--no-edge")
	all := d.descendants()
	broker := 0
	for pid, name := range all {
		if strings.HasPrefix(name, "bivouac-broker") {
			broker = pid
		}
	}
	if broker == 0 {
		t.Fatalf("no broker among %v", all)
	}
	if err := syscall.Kill(broker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(); code != protocol.CodeUnavailable.ExitCode() {
		t.Errorf("exit code %d", code)
	}
	if said := d.said(); !regexp.MustCompile(`bivouac-broker ended: signal: killed; its log ends with:\ntime=`).MatchString(said) {
		t.Errorf("it said:\n%s", said)
	}
	d.gone(all)
}

// A second one on the same data is refused before it changes anything, and so is
// a port in use; what the error says works.
func TestDevRefusesWhatIsTaken(t *testing.T) {
	d := newDev(t)
	d.start("--no-edge")
	kept := d.addresses()
	_, said, code := d.cli(d.args("--public", "127.0.0.1:1")...)
	if code != protocol.CodeFailedPrecondition.ExitCode() || !strings.Contains(said, "another bivouac dev runs on "+filepath.Join(d.dir, "state")) || !strings.Contains(said, "--data") {
		t.Errorf("a second one: exit code %d: %s", code, said)
	}
	if now := d.addresses(); now["public"] != kept["public"] {
		t.Errorf("the second one changed the addresses: %v", now)
	}
	d.must("whoami")

	other := &devRun{t: t, dir: t.TempDir(), bin: d.bin}
	for flag, network := range map[string]string{"public": "tcp", "runner": "udp", "broker": "tcp", "model": "tcp"} {
		address := occupied(t, network)
		_, said, code := other.cli(other.args("--no-edge", "--"+flag, address)...)
		if code != protocol.CodeFailedPrecondition.ExitCode() || !strings.Contains(said, "--"+flag+" "+address+" cannot be used") || !strings.Contains(said, "at every start: --"+flag+" 127.0.0.1:") {
			t.Errorf("%s: exit code %d: %s", flag, code, said)
		}
	}
	// Two of them are no mistake, and neither takes the other's login.
	login := filepath.Join(d.dir, "login", "login.json")
	before, err := os.ReadFile(login)
	if err != nil {
		t.Fatal(err)
	}
	second := &devRun{t: t, dir: d.dir, bin: d.bin}
	second.start("--no-edge", "--data", filepath.Join(other.dir, "state"))
	if after, err := os.ReadFile(login); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the second one took the first one's login (%v)", err)
	}
	if want := "BIVOUAC_CONFIG=" + filepath.Join(other.dir, "state", "login") + " bivouac chat"; !strings.Contains(second.said(), want) {
		t.Errorf("the second one does not say %q:\n%s", want, second.said())
	}
	if want := "note: your login in " + filepath.Join(d.dir, "login") + " is for another deployment"; !strings.Contains(second.said(), want) {
		t.Errorf("the second one does not say %q:\n%s", want, second.said())
	}
}

// Another directory at the same address is another deployment: the first login
// stays, the second one works from where it says, and each start finds its own.
func TestDevKeepsBothLogins(t *testing.T) {
	d := newDev(t)
	d.start("--no-edge")
	public := d.addresses()["public"]
	first := d.must("whoami")
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	d.wait()
	other := filepath.Join(d.dir, "other")
	d.start("--no-edge", "--data", other, "--public", public)
	_, said, code := d.cli("whoami")
	if code != protocol.CodeUnauthenticated.ExitCode() {
		t.Errorf("the first login at the other deployment: exit code %d: %s", code, said)
	}
	d.must("--config", filepath.Join(other, "login"), "whoami")
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	d.wait()
	d.start("--no-edge")
	if again := d.must("whoami"); again != first || strings.Contains(d.said(), "note: your login") {
		t.Errorf("the first deployment's login: %s, then %s\n%s", first, again, d.said())
	}
}

// occupied is an address that somebody else has.
func occupied(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.LocalAddr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}
