package worker

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// Inherited is the connection on an inherited descriptor. It makes no socket
// call, because sandbox A may not.
func Inherited(fd int) (net.Conn, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, errors.New("worker: there is no channel on descriptor 3: bivouac-worker is started by bivouac-edge, not by hand")
	}
	syscall.CloseOnExec(fd)
	return channel{os.NewFile(uintptr(fd), "channel")}, nil
}

// channel is a file with the addresses that net.Conn wants.
type channel struct{ *os.File }

func (channel) LocalAddr() net.Addr  { return address{} }
func (channel) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "channel" }
func (address) String() string  { return "supervisor" }
