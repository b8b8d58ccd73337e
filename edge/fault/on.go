//go:build faults

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Said begins the line by which a process without a file tells its label.
const Said = "fault reached"

var (
	once   sync.Once
	passed atomic.Int64
)

// Here stops the process at the chosen step, once.
func Here(l Label) {
	chosen, nth := choice(os.Getenv("BIVOUAC_FAULT"))
	if chosen != l || passed.Add(1) < nth {
		return
	}
	once.Do(func() {
		if os.Getenv("BIVOUAC_FAULT_FILE") == "" {
			// Inside a sandbox nothing can be written: the supervisor reads this.
			fmt.Fprintln(os.Stderr, Said, l)
			select {}
		}
		f, err := os.OpenFile(os.Getenv("BIVOUAC_FAULT_FILE"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return // another process reached it first
		}
		fmt.Fprintf(f, "%s %d\n", l, os.Getpid())
		f.Close()
		select {}
	})
}

// choice reads "label" or "label@n": the n-th time that this process gets there.
func choice(text string) (l Label, nth int64) {
	name, times, counted := strings.Cut(text, "@")
	if n, err := strconv.ParseInt(times, 10, 64); counted && err == nil {
		return Label(name), n
	}
	return Label(name), 1
}
