//go:build linux

package vaultpolicy

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"bivouac/server/broker/egress"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/ssh"
	"bivouac/server/broker/ssh/sshtest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// sshd of OpenSSH, one process a connection, which trusts one authority.
type sshd struct {
	key gossh.PublicKey
	ln  net.Listener
	all sync.WaitGroup
}

// findSSHD skips, and says so, where this machine cannot run one.
func findSSHD(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sshd")
	if err != nil {
		path = "/usr/sbin/sshd"
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("NO SSHD HERE: nothing was tried against OpenSSH; install openssh-server")
	}
	if os.Getuid() == 0 {
		if _, err := os.Stat("/run/sshd"); err != nil {
			t.Skip("NO SSHD HERE: as root it needs the folder /run/sshd, and nothing was tried against OpenSSH")
		}
	}
	if out, err := exec.Command(path, "-V").CombinedOutput(); err != nil && !strings.Contains(string(out), "OpenSSH") {
		t.Skipf("NO SSHD HERE: %s does not run: %s", path, out)
	}
	return path
}

func startSSHD(t *testing.T, authority gossh.PublicKey) *sshd {
	t.Helper()
	path, dir := findSSHD(t), t.TempDir()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	config := write("sshd_config", strings.Join([]string{
		"HostKey " + write("host", string(pem.EncodeToMemory(block))), "TrustedUserCAKeys " + write("ca.pub", sshtest.Line(authority)),
		"PidFile none", "StrictModes no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "AuthorizedKeysFile none", "PermitRootLogin prohibit-password", "",
	}, "\n"))
	s := &sshd{key: signer.PublicKey()}
	if s.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.all.Go(func() {
		for {
			conn, err := s.ln.Accept()
			if err != nil {
				return
			}
			f, err := conn.(*net.TCPConn).File()
			conn.Close()
			if err != nil {
				continue
			}
			s.all.Go(func() {
				defer f.Close()
				cmd := exec.Command(path, "-i", "-e", "-f", config)
				cmd.Stdin, cmd.Stdout = f, f
				said, err := os.Create(filepath.Join(dir, "log"))
				if err == nil {
					cmd.Stderr = said
					defer said.Close()
				}
				_ = cmd.Run() // its end is the connection's
			})
		}
	})
	t.Cleanup(func() {
		s.ln.Close()
		s.all.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("sshd: %s", b)
		}
	})
	return s
}

// run a line at it, signed in so.
func (s *sshd) run(t *testing.T, user string, signer gossh.Signer, words ...string) string {
	t.Helper()
	base, err := ssh.CheckURL("ssh://" + s.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	e := ssh.New(ssh.Config{Name: "h", User: user, HostKeys: []gossh.PublicKey{s.key}, Credentials: []string{issuedName},
		Commands: map[string]ssh.Command{"c": {Run: words, Timeout: time.Minute}}, Reach: egress.Config{Name: "h", Base: base, AllowPrivate: true}})
	r, err := e.Prepare(ssh.Call{Arguments: []byte(`{}`), Tool: &brokerv1.HttpTool{Destination: "h", Credential: issuedName, Ssh: &brokerv1.SshCall{Command: "c"}}})
	if err != nil {
		t.Fatal(err)
	}
	session, err := r.Open(t.Context(), signer)
	if err != nil {
		return err.Error()
	}
	defer session.Close()
	a, err := session.Run(t.Context())
	if err != nil {
		return err.Error()
	}
	if a.Unread != "" || a.Truncated { // sshd ended the command's channel itself
		t.Errorf("%v: not all of it: %q", words, a.Unread)
	}
	return string(a.Body)
}

// OpenSSH itself takes what these servers sign, runs the command that it is bound to
// whatever it is asked for, and takes it for no other user and from no other authority.
func TestSSHRealDaemon(t *testing.T) {
	findSSHD(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		from := x.sshEngine()
		from.Principals = []string{me.Username}
		i := x.issuing(t, from)
		const command = "printf '%s|' 'a b' \"$SSH_ORIGINAL_COMMAND\"; echo oops >&2; exit 4"
		c, err := i.signs(t, command)
		if err != nil {
			t.Fatal(err)
		}
		d := startSSHD(t, i.sshAuthority(t, from))
		if got := d.run(t, me.Username, c.Signer, "cat", "/etc/passwd"); got != "exit status 4\na b|cat /etc/passwd|\n\nstderr:\noops\n" {
			t.Errorf("%q", got)
		}
		other := startSSHD(t, sshtest.NewKey(t).PublicKey())
		if got := other.run(t, me.Username, c.Signer, "id"); !strings.Contains(got, "TrustedUserCAKeys") {
			t.Errorf("another authority: %q", got)
		}
		narrow := *from
		narrow.Principals = []string{"somebody"}
		i.from = &narrow
		x.scope.Issued = map[string]*issued.From{issuedName: &narrow}
		x.setup(t)
		if c, err = i.signs(t, command); err != nil {
			t.Fatal(err)
		}
		if got := d.run(t, me.Username, c.Signer, "id"); !strings.Contains(got, "AuthorizedPrincipalsFile") {
			t.Errorf("another principal: %q", got)
		}
	})
}
