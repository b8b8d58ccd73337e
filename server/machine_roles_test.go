package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// A certificate of the deployment is no certificate of a runner: what a broker or
// another server holds opens none of the methods for machines.
func TestOnlyRunnersDoMachinesWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rightful := w.able(w.as(w.token), "laptop")
		job := work{attempt: "att_01aaaaaaaaaaaaaaaaaaaaaaaa", workspace: "sha256:" + strings.Repeat("0", 64), patch: "sha256:" + strings.Repeat("0", 64), fence: 1<<32 | 1, epoch: rightful.epoch}
		for _, role := range []identity.Role{identity.RoleBroker, identity.RoleServer} {
			leaf, err := w.broker.Root.Leaf(role, "x_1", "", 24*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			m := &machine{cert: leaf, epoch: rightful.epoch}
			w.dial(m)
			for _, c := range machineCrossings {
				enrol := c.method == "RunnerService.Enroll" // refused otherwise, and says so itself
				if !strings.HasPrefix(c.method, "RunnerService.") {
					continue
				}
				if err := c.call(t.Context(), m, job); enrol && err != nil || !enrol && codeOf(err) != protocol.CodePermissionDenied {
					t.Errorf("%s by a %s: %v", c.method, role, protocol.FromConnect(err))
				}
			}
		}
		if w.connectAble(rightful) <= rightful.epoch {
			t.Error("the runner itself cannot connect")
		}
	})
}
