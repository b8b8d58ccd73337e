//go:build linux || darwin

package edge

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"bivouac/edge/protocol"
)

// PeerUser is the user at the other end of the control socket, by the system's word.
// It must be the one that the daemon runs as, or root, who could pose as it.
func PeerUser(c net.Conn) (string, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return "", protocol.Errorf(protocol.CodePermissionDenied, "a decision comes over the control socket alone")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return "", err
	}
	var uid uint32
	if cerr := raw.Control(func(fd uintptr) { uid, err = peerUID(int(fd)) }); cerr != nil || err != nil {
		return "", protocol.Errorf(protocol.CodePermissionDenied, "the system does not say who speaks on the control socket, so nothing is decided: %w", firstOf(cerr, err))
	}
	name := userName(uid)
	if int(uid) != os.Geteuid() && uid != 0 {
		return "", protocol.Errorf(protocol.CodePermissionDenied, "%s does not own this runner: decide as %s", name, userName(uint32(os.Geteuid())))
	}
	return name, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// userName is the name of a user, or its number where it has none.
func userName(uid uint32) string {
	n := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return "uid " + n
}
