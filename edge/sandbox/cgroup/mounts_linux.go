package cgroup

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// layout is what /proc says about control groups.
type layout struct {
	unified string            // mount point of cgroup2, or empty
	v1      map[string]string // controller → mount point of its hierarchy
	own     map[string]string // controller ("" for unified) → own path below the mount
}

// readLayout parses mountinfo and the own cgroup file.
func readLayout(mountinfo, own string) (layout, error) {
	l := layout{v1: map[string]string{}, own: map[string]string{}}
	err := lines(mountinfo, func(line string) {
		// "36 35 0:30 / /sys/fs/cgroup/memory rw,… - cgroup cgroup rw,memory"
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || f[3] != "/" {
			return // a bind of a subtree is not a place for our groups
		}
		switch g[0] {
		case "cgroup2":
			if l.unified == "" {
				l.unified = f[4]
			}
		case "cgroup":
			for _, o := range strings.Split(g[2], ",") {
				if _, seen := l.v1[o]; !seen {
					l.v1[o] = f[4]
				}
			}
		}
	})
	if err != nil {
		return l, err
	}
	return l, lines(own, func(line string) {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			return
		}
		for _, c := range strings.Split(f[1], ",") {
			l.own[c] = f[2]
		}
	})
}

func lines(path string, each func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		each(s.Text())
	}
	return s.Err()
}

// controllersOf lists what a unified group can hand to its children.
func controllersOf(dir string) map[string]bool {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	set := map[string]bool{}
	for _, c := range strings.Fields(string(text)) {
		set[c] = true
	}
	return set
}
