package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/capability"
)

// A fault is of one tenant and one route, and is told for a day: who asks no more is
// no problem.
func TestKeyFaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyless()
		ask := func(route, tenant string) *request {
			return &request{model: route, claims: capability.Claims{Tenant: protocol.TenantID(tenant), TenantName: tenant}}
		}
		missing := protocol.Errorf(protocol.CodeFailedPrecondition, "the tenant has no credential")
		k.lacked(ask("main", "a"), missing)
		time.Sleep(time.Hour)
		k.lacked(ask("main", "b"), missing)
		k.lacked(ask("main", "c"), protocol.Errorf(protocol.CodeUnavailable, "the authority does not answer"))
		k.note(ask("other", "a"), nil)
		if faults, of := k.faults("main"); len(faults) != 2 || of[0] != "a" || faults[1].tenantName != "b" {
			t.Errorf("%v of %v", faults, of)
		}
		time.Sleep(keyFaultLife - time.Minute)
		if faults, _ := k.faults("main"); len(faults) != 1 || faults[0].tenantName != "b" {
			t.Errorf("a day after the first: %v", faults)
		}
		k.note(ask("main", "b"), nil)
		if faults, _ := k.faults("main"); len(faults) != 0 || len(k.last) != 0 {
			t.Errorf("after a good call: %v", faults)
		}
	})
}
