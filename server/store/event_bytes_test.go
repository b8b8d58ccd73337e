package store

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gowebpki/jcs"

	"bivouac/server/session"
)

// The stored bytes are what an independent implementation of RFC 8785 makes of
// the same object.
func FuzzCanonicalEvent(f *testing.F) {
	f.Add("turn.queued", "key", "value", int64(1), int64(1_700_000_000_000_000))
	f.Add("tool.finished", "<&>\u2028", "\x00\x1f\b\f\n\r\t\"\\/", int64(1<<53), int64(0))
	f.Add("x", "\U0001F600", "é", int64(9), int64(-1))
	f.Add("", "", "", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, typ, name, value string, seq, at int64) {
		e := session.Stored{Session: "ses_x", Seq: seq % (1 << 53), At: time.UnixMicro(at % (1 << 53)),
			Event: cleanEvent(session.Event{Type: session.EventType(cleanText(typ)), Turn: "trn_x",
				Data: map[string]string{name: value, "z": "last", "\uFB33": "after an emoji in UTF-8, before it in UTF-16"}})}
		got := canonicalEvent(e, "d1")
		object := map[string]any{"at": micros(e.At), "data": e.Data, "payload_digest": "d1", "seq": e.Seq, "session": "ses_x", "turn": "trn_x"}
		if e.Type != "" {
			object["type"] = e.Type
		}
		plain, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jcs.Transform(plain)
		if err != nil {
			t.Skip(err) // it refuses what JSON numbers cannot hold
		}
		if string(got) != string(want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// Golden bytes: what was hashed once must be hashed for ever.
func TestCanonicalEventGolden(t *testing.T) {
	e := session.Stored{Session: "ses_1", Seq: 7, At: time.UnixMicro(1_700_000_000_123_456), Event: session.Event{Type: session.ToolFinished,
		Turn: "trn_1", Action: "act_1", Attempt: "att_1", Approval: "apr_1", Data: map[string]string{"code": "ok", "alias": "read"}, Payload: "words"}}
	const want = `{"action":"act_1","approval":"apr_1","at":1700000000123456,"attempt":"att_1","data":{"alias":"read","code":"ok"},` +
		`"payload_digest":"dd","seq":7,"session":"ses_1","turn":"trn_1","type":"tool.finished"}`
	if got := string(canonicalEvent(e, "dd")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
