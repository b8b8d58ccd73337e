package protocol

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"
)

// The id of a job comes from outside, and names a directory: exactly what the server
// makes is read, and nothing else.
func TestAllocationJob(t *testing.T) {
	id := NewID[AttemptKind](time.Now(), rand.Reader)
	letters := strings.TrimPrefix(id.String(), "att_")
	for _, n := range []int{1, 2, 10, 1000} {
		job := AllocationJob(id, n)
		if a, m, err := ParseAllocationJob(job); err != nil || a != id || m != n {
			t.Errorf("%s is read as %s %d, %v", job, a, m, err)
		}
	}
	for _, bad := range []string{
		"", "bivouac-", "bivouac--1", "bivouac-runner", letters, letters + "-1", id.String(),
		"bivouac-" + letters, "bivouac-" + letters + "-", "bivouac-" + letters + "-0", "bivouac-" + letters + "-01",
		"bivouac-" + letters + "-+1", "bivouac-" + letters + "--1", "bivouac-" + letters + "-1-2", "bivouac-" + letters + "-1/..",
		"bivouac-" + letters + "-99999999999999999999", "bivouac-" + strings.ToUpper(letters) + "-1", "bivouac-" + letters[1:] + "-1",
		"bivouac-../../../../etc/passwd-1", "bivouac-" + letters + "-1\x00", "bivouac-" + letters + "-1 ", " bivouac-" + letters + "-1",
		"bivouac-att_" + letters + "-1", "bivouac-" + letters + "_-1", "other-" + letters + "-1", strings.Repeat("bivouac-", 1000),
	} {
		if a, n, err := ParseAllocationJob(bad); CodeOf(err) != CodeInvalidArgument || a != "" || n != 0 || len(err.Error()) > 300 {
			t.Errorf("%q is read as %s %d, %v", bad, a, n, err)
		}
	}
}
