package bubblewrap

import (
	"errors"
	"fmt"
	"os"
)

// etcFiles are the small files of B's /etc, kept as anonymous files for the life
// of the process: there is nothing to clean up on disk. There is no resolver.
type etcFiles []etcFile

type etcFile struct {
	path string
	file *os.File
}

func newEtcFiles() (etcFiles, error) {
	var all etcFiles
	for _, f := range []struct{ path, text string }{
		{"/etc/passwd", fmt.Sprintf("agent:x:%d:%d:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n", insideUID, insideGID)},
		{"/etc/group", fmt.Sprintf("agent:x:%d:\nnogroup:x:65534:\n", insideGID)},
		{"/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"},
		{"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"},
	} {
		m, err := memory(f.path, []byte(f.text))
		if err != nil {
			return nil, err
		}
		all = append(all, etcFile{f.path, m})
	}
	return all, nil
}

// add writes the files and shows the two parts of the host's /etc without which
// programs in /usr do not run: Debian's alternatives and the linker's cache.
func (e etcFiles) add(l *layout) error {
	for _, f := range e {
		// A second description of the same file, with its own position.
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.file.Fd()))
		if err != nil {
			return err
		}
		l.add("--perms", "0444", "--file", l.pass(again), f.path)
	}
	for _, path := range []string{"/etc/alternatives", "/etc/ld.so.cache"} {
		if err := l.bind("--ro-bind-fd", path, path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
