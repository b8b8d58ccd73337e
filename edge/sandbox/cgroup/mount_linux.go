package cgroup

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// hierarchies are the controllers that this kernel keeps in hierarchies of version 1,
// by the number of the hierarchy: those that are mounted together have one.
func hierarchies() map[string][]string {
	b, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return nil
	}
	return readHierarchies(string(b))
}

func readHierarchies(text string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && !strings.HasPrefix(line, "#") && f[1] != "0" && f[3] == "1" {
			all[f[1]] = append(all[f[1]], f[0])
		}
	}
	return all
}

// mountAll is the command that mounts these controllers where groups are looked for:
// the hierarchies of version 1 that have them, or the unified one, which has those that
// no other has. fresh says that nothing is mounted there yet.
func mountAll(v1 map[string][]string, controllers []string, fresh bool) string {
	sudo := ""
	if os.Geteuid() != 0 {
		sudo = "sudo "
	}
	var commands []string
	for _, c := range controllers {
		for _, together := range v1 {
			if !slices.Contains(together, c) {
				continue
			}
			name := strings.Join(together, ",")
			one := fmt.Sprintf("%[1]smkdir -p /sys/fs/cgroup/%[2]s && %[1]smount -t cgroup -o %[2]s cgroup /sys/fs/cgroup/%[2]s", sudo, name)
			if !slices.Contains(commands, one) {
				commands = append(commands, one)
			}
		}
	}
	if len(commands) == 0 {
		return sudo + "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
	}
	if fresh {
		commands = append([]string{sudo + "mount -t tmpfs cgroup /sys/fs/cgroup"}, commands...)
	}
	return strings.Join(commands, " && ")
}

// held reports a controller that is in a hierarchy of version 1.
func held(v1 map[string][]string, controller string) bool {
	for _, together := range v1 {
		if slices.Contains(together, controller) {
			return true
		}
	}
	return false
}
