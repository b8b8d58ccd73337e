//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A port that was given out is held against everybody who asks, in another process
// too: to the kernel another opening of the file is as good as one. When its holder
// is gone it is given out again.
func TestPortIsHeld(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("bivouac-ports-%d", os.Getuid()), fmt.Sprint(port))
	if f, err := hold(path); !errors.Is(err, syscall.EWOULDBLOCK) {
		f.Close()
		t.Fatalf("somebody else was given port %d too: %v", port, err)
	}
	ports.Lock()
	ports.held[port].Close()
	delete(ports.held, port)
	ports.Unlock()
	f, err := hold(path)
	if err != nil {
		t.Fatalf("after its holder is gone: %v", err)
	}
	f.Close()
}
