package feed

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// fleeting floors matter only to capabilities that were made before them; those
// have ended after this time, and flows were judged when the floor came.
const fleetingTTL = 5 * capability.MaxTTL

type floorKey struct {
	kind brokerv1.FloorKind
	id   string
}

type floor struct {
	minimum int64
	at      time.Duration
}

// floors is the newest state of every subject.
type floors struct {
	by    map[floorKey]floor
	taken []protocol.GrantID // grants that were taken back, each once
	swept time.Duration
}

// raise takes one floor; it never lowers. It reports a change.
func (f *floors) raise(in *brokerv1.Floor, now time.Duration) bool {
	key := floorKey{in.GetKind(), in.GetId()}
	old, known := f.by[key]
	if known && old.minimum >= in.GetMinimum() {
		return false
	}
	f.by[key] = floor{in.GetMinimum(), now}
	if key.kind == brokerv1.FloorKind_FLOOR_KIND_GRANT && old.minimum <= 0 && in.GetMinimum() > 0 {
		if id, err := protocol.ParseID[protocol.GrantKind](key.id); err == nil {
			f.taken = append(f.taken, id)
		}
	}
	return true
}

// sweep forgets fleeting floors that no capability can be below any more.
func (f *floors) sweep(now time.Duration) {
	if now-f.swept < fleetingTTL {
		return
	}
	f.swept = now
	for key, fl := range f.by {
		if fleeting(key.kind) && now-fl.at > fleetingTTL {
			delete(f.by, key)
		}
	}
}

// fleeting subjects live for minutes. Grants, runners, instances and principals
// are few and stay: their floors also stop a server that would mint again.
func fleeting(k brokerv1.FloorKind) bool {
	switch k {
	case brokerv1.FloorKind_FLOOR_KIND_SESSION, brokerv1.FloorKind_FLOOR_KIND_TURN, brokerv1.FloorKind_FLOOR_KIND_ATTEMPT:
		return true
	}
	return false
}
