//go:build linux

// Package pgcluster runs real PostgreSQL servers for tests that stop, hang,
// overload and fail over what a shared one must not suffer. Each listens on a Unix
// socket in a directory of its own and is a child of the test: it ends with it, and
// is only ever ended by its number.
//
// It refuses to guess: without PostgreSQL's programs Start says ErrAbsent, and the
// test skips loudly.
package pgcluster

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// ErrAbsent says that PostgreSQL is not installed here.
var ErrAbsent = errors.New("pgcluster: PostgreSQL's programs are not installed: apt-get install postgresql")

// Cluster is one server's data and, while it is up, its process.
type Cluster struct {
	dir  string
	bin  string
	cred *syscall.Credential
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	log  bytes.Buffer
}

// programs of the newest installed version.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return "", ErrAbsent
	}
	return found[len(found)-1], nil
}

// New makes an empty cluster and starts it. args are settings, as name=value.
func New(ctx context.Context, args ...string) (*Cluster, error) {
	c, err := place(args)
	if err != nil {
		return nil, err
	}
	err = c.tool(ctx, "initdb", "-D", c.data(), "-U", "bivouac", "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US", "--no-sync")
	if err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Remove())
	}
	return c, nil
}

// Standby makes a streaming copy, which takes no writes until it is promoted.
func (c *Cluster) Standby(ctx context.Context) (*Cluster, error) {
	s, err := place(c.args)
	if err != nil {
		return nil, err
	}
	err = s.tool(ctx, "pg_basebackup", "-d", c.DSN(), "-D", s.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	if err == nil {
		err = s.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

// place makes the directory, for the user that the server runs as: never root.
func place(args []string) (*Cluster, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin, args: args}
	if c.dir, err = os.MkdirTemp("", "pg"); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return c, nil
	}
	name := "postgres"
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, errors.Join(err, c.Remove())
		}
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	c.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if err := errors.Join(os.Chown(c.dir, uid, gid), os.Chmod(c.dir, 0o711)); err != nil { // the socket is in it
		return nil, errors.Join(err, c.Remove())
	}
	return c, nil
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// Host is the directory of the socket.
func (c *Cluster) Host() string { return c.dir }

// DSN of the database.
func (c *Cluster) DSN() string { return DSN(c) }

// DSN names several clusters, the first that takes writes is used.
func DSN(all ...*Cluster) string {
	hosts := ""
	for _, c := range all {
		if hosts != "" {
			hosts += ","
		}
		hosts += c.dir
	}
	return "host=" + hosts + " user=bivouac dbname=postgres sslmode=disable"
}

func (c *Cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred, Setpgid: true}
	return cmd
}

func (c *Cluster) tool(ctx context.Context, name string, args ...string) error {
	out, err := c.command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgcluster: %s: %w\n%s", name, err, out)
	}
	return nil
}

// Start brings the server up and waits until it answers.
func (c *Cluster) Start(ctx context.Context) error {
	args := []string{"-D", c.data(), "-c", "listen_addresses=", "-c", "unix_socket_directories=" + c.dir, "-c", "fsync=off", "-c", "hot_standby=on"}
	for _, a := range c.args {
		args = append(args, "-c", a)
	}
	c.log.Reset()
	cmd := c.command(context.WithoutCancel(ctx), "postgres", args...)
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	c.cmd, c.done = cmd, done
	go func() { cmd.Wait(); close(done) }() // how it ended is in its log
	for {
		err := c.Exec(ctx, `SELECT 1`)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("pgcluster: the server ended: %w\n%s", err, c.log.String())
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err, c.Kill())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server in order, and its connections with it.
func (c *Cluster) Stop() error { return c.signal(syscall.SIGINT) }

// Kill ends the server at once, as a crash of its machine does.
func (c *Cluster) Kill() error { return c.signal(syscall.SIGQUIT) }

func (c *Cluster) signal(s syscall.Signal) error {
	if c.cmd == nil {
		return nil
	}
	err := errors.Join(c.Resume(), c.cmd.Process.Signal(s)) // one that hangs cannot end
	<-c.done
	c.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Hang stops the whole server without ending it: connections stay open and
// nothing answers.
func (c *Cluster) Hang() error { return c.each(syscall.SIGSTOP) }

// Resume lets it go on.
func (c *Cluster) Resume() error { return c.each(syscall.SIGCONT) }

// each signals the server and its children, by their numbers: every child leads a
// group of its own.
func (c *Cluster) each(s syscall.Signal) error {
	parent := c.cmd.Process.Pid
	errs := []error{syscall.Kill(parent, s)}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	errs = append(errs, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it is gone
		}
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err := syscall.Kill(pid, s); !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Exec runs one statement on a connection of its own.
func (c *Cluster) Exec(ctx context.Context, text string) error {
	db, err := sql.Open("pgx", c.DSN())
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, text)
	return errors.Join(err, db.Close())
}

// Promote makes a standby the primary.
func (c *Cluster) Promote(ctx context.Context) error { return c.Exec(ctx, `SELECT pg_promote()`) }

// Remove ends the server and deletes its data.
func (c *Cluster) Remove() error { return errors.Join(c.Kill(), os.RemoveAll(c.dir)) }
