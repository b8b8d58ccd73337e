package protocol

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var entropy = bytes.Repeat([]byte{7}, 64)

// kinds are all identifier types: each parses its own text and no other's.
var kinds = map[string]struct {
	make  func(time.Time) string
	parse func(string) error
}{
	"tenant":     kindOf[TenantKind](),
	"principal":  kindOf[PrincipalKind](),
	"instance":   kindOf[InstanceKind](),
	"session":    kindOf[SessionKind](),
	"turn":       kindOf[TurnKind](),
	"action":     kindOf[ActionKind](),
	"attempt":    kindOf[AttemptKind](),
	"approval":   kindOf[ApprovalKind](),
	"runner":     kindOf[RunnerKind](),
	"binding":    kindOf[BindingKind](),
	"grant":      kindOf[GrantKind](),
	"capability": kindOf[CapabilityKind](),
	"slice":      kindOf[SliceKind](),
	"replica":    kindOf[ReplicaKind](),
	"cleanup":    kindOf[CleanupKind](),
	"call":       kindOf[CallKind](),
}

func kindOf[K Kind]() struct {
	make  func(time.Time) string
	parse func(string) error
} {
	return struct {
		make  func(time.Time) string
		parse func(string) error
	}{
		func(now time.Time) string { return NewID[K](now, bytes.NewReader(entropy)).String() },
		func(s string) error { _, err := ParseID[K](s); return err },
	}
}

func TestWrongKindFailsAtParse(t *testing.T) {
	now := time.UnixMilli(1_900_000_000_000)
	for name, kind := range kinds {
		for other, of := range kinds {
			err := kind.parse(of.make(now))
			if (err == nil) != (name == other) {
				t.Errorf("parsing the id of a %s as one of a %s: %v", other, name, err)
			}
			if err != nil && CodeOf(err) != CodeInvalidArgument {
				t.Errorf("parsing the id of a %s as one of a %s has code %s", other, name, CodeOf(err))
			}
		}
	}
}

func TestParseID(t *testing.T) {
	good := NewID[TurnKind](time.UnixMilli(1), bytes.NewReader(entropy)).String()
	for name, bad := range map[string]string{
		"empty":       "",
		"no prefix":   good[4:],
		"upper case":  "trn_" + strings.ToUpper(good[4:]),
		"short":       good[:len(good)-1],
		"long":        good + "0",
		"alphabet":    good[:len(good)-1] + "u",
		"overflow":    "trn_8" + good[5:],
		"space":       " " + good,
		"prefix only": "trn_",
	} {
		if id, err := ParseID[TurnKind](bad); err == nil {
			t.Errorf("%s: %q was accepted as %s", name, bad, id)
		}
	}
	if id, err := ParseID[TurnKind](good); err != nil || id.String() != good {
		t.Errorf("%q gave %q, %v", good, id, err)
	}
	_, err := ParseID[TurnKind](strings.Repeat("x", 500))
	if err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), "a turn id") {
		t.Errorf("a long wrong id: %v", err)
	}
}

func TestIDsSortByTime(t *testing.T) {
	a := NewID[TurnKind](time.UnixMilli(1000), bytes.NewReader(entropy))
	b := NewID[TurnKind](time.UnixMilli(1001), bytes.NewReader(entropy))
	if !(a < b) {
		t.Errorf("%s is not below %s", a, b)
	}
}

func TestIDText(t *testing.T) {
	id := NewID[RunnerKind](time.UnixMilli(5), bytes.NewReader(entropy))
	type record struct {
		Runner RunnerID `json:"runner"`
	}
	b, err := json.Marshal(record{id})
	if err != nil {
		t.Fatal(err)
	}
	var back record
	if err := json.Unmarshal(b, &back); err != nil || back.Runner != id {
		t.Errorf("%s came back as %q, %v", b, back.Runner, err)
	}
	if err := json.Unmarshal([]byte(`{"runner":""}`), &back); err != nil || !back.Runner.IsZero() {
		t.Errorf("the empty text gave %q, %v", back.Runner, err)
	}
	foreign := strings.Replace(string(b), "run_", "trn_", 1)
	if err := json.Unmarshal([]byte(foreign), &back); err == nil {
		t.Errorf("%s was read as a runner id", foreign)
	}
}
