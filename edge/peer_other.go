//go:build !linux && !darwin

package edge

import (
	"net"
	"os/user"

	"bivouac/edge/protocol"
)

// PeerUser is the user that the daemon runs as: this system does not say who speaks
// on a local socket, and nobody else can reach it in its directory.
func PeerUser(net.Conn) (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", protocol.Errorf(protocol.CodePermissionDenied, "the system does not say who runs this program, so nothing is decided: %w", err)
	}
	return u.Username, nil
}
