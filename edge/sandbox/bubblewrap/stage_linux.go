package bubblewrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"bivouac/edge/protocol"

	"golang.org/x/sys/unix"
)

// stage shows host paths to the sandbox's uid that it cannot walk to: bwrap runs
// as that uid and resolves what it binds, and the edge's folders are closed to
// others. The paths are bound into a mount namespace that only the spawning
// thread and its children have, so nothing appears on the host and nothing is
// left. It is used on that thread alone.
type stage struct {
	idle     bool // the edge's own uid is used: it walks where the edge walks
	uid, gid int
	dir      string // empty until the first path needs it
	shown    map[string]string
}

// path is where bwrap finds a host path.
func (s *stage) path(host string) (string, error) {
	if s.idle || s.reachable(host) {
		return host, nil
	}
	if at, ok := s.shown[host]; ok {
		return at, nil
	}
	at, err := s.show(host)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition,
			"uid %d, which sandboxed code gets, cannot reach %s, and it cannot be shown to it (%w); let it pass: chmod o+x on the folders above",
			s.uid, host, err)
	}
	s.shown[host] = at
	return at, nil
}

// reachable reports whether the uid may walk to the path; links count as not.
func (s *stage) reachable(host string) bool {
	for dir := filepath.Dir(host); ; dir = filepath.Dir(dir) {
		st, err := os.Lstat(dir)
		if err != nil {
			return true // bwrap says what is wrong
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok || !st.IsDir() || !mayEnter(sys, s.uid, s.gid) {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

func mayEnter(st *syscall.Stat_t, uid, gid int) bool {
	switch {
	case int(st.Uid) == uid:
		return st.Mode&0o100 != 0
	case int(st.Gid) == gid:
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// show binds a host path below the stage.
func (s *stage) show(host string) (string, error) {
	if s.dir == "" {
		if err := s.open(); err != nil {
			return "", err
		}
	}
	if host == s.dir || strings.HasPrefix(host, s.dir+"/") {
		return "", fmt.Errorf("%s is hidden here", s.dir)
	}
	at := filepath.Join(s.dir, strconv.Itoa(len(s.shown)))
	st, err := os.Stat(host)
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		err = os.Mkdir(at, 0o755)
	} else {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mount(host, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", errors.Join(fmt.Errorf("bind: %w", err), os.Remove(at))
	}
	return at, nil
}

// places can be covered in a private mount namespace without hiding what bwrap
// or a sandbox needs.
var places = []string{"/mnt", "/media", "/srv", "/dev/shm"}

// open gives the thread a mount namespace of its own, with a stage in it.
func (s *stage) open() error {
	if err := privateMounts(); err != nil {
		return err
	}
	for _, dir := range places {
		if st, err := os.Lstat(dir); err != nil || !st.IsDir() || !s.reachable(dir+"/x") {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
			return fmt.Errorf("mount a stage on %s: %w", dir, err)
		}
		s.dir = dir
		return nil
	}
	return fmt.Errorf("none of %s can hold a stage", strings.Join(places, ", "))
}
