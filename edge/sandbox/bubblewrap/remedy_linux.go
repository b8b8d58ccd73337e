package bubblewrap

import (
	"os"
	"strings"
)

// What a person does about a machine without a usable sandbox.
const (
	remedyInstall = "bubblewrap is not installed: apt-get install bubblewrap (version 0.8.0 or later)"
	remedyClone   = "unprivileged user namespaces are off: sysctl -w kernel.unprivileged_userns_clone=1"
	remedyMax     = "user namespaces are off: sysctl -w user.max_user_namespaces=15000"
	remedyUbuntu  = "AppArmor forbids unprivileged user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, " +
		"or install an AppArmor profile for bwrap that allows userns"
	remedyContainer = "user namespaces or mounts are forbidden here, as in a container: run the edge on the host, " +
		"or give the container a seccomp profile that allows unshare and mount, and an unmasked /proc"
)

// remedyFor looks at what bwrap said and at the switches that exist for it.
func remedyFor(said string) string {
	for _, s := range []struct{ path, off, remedy string }{
		{"/proc/sys/user/max_user_namespaces", "0", remedyMax},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", remedyClone},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", remedyUbuntu},
	} {
		if value, err := os.ReadFile(s.path); err == nil && strings.TrimSpace(string(value)) == s.off {
			return s.remedy
		}
	}
	switch {
	case strings.Contains(said, "no such file"):
		return remedyInstall
	case strings.Contains(said, "Unknown option"):
		return "bwrap is older than 0.8.0: apt-get install bubblewrap from a newer release"
	}
	return remedyContainer
}
