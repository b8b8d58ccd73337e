package server_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// Each kind of caller claims for a turn what the table gives it and nothing else, and
// what was claimed is in the record. INV-9.
func TestOriginsOfTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		res, err := alice.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{Name: "clockwork", Kind: "service"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := alice.Grants.CreateGrant(t.Context(), &apiv1.CreateGrantRequest{Agent: "clerk"}); err != nil {
			t.Fatal(err)
		}
		service := w.as(res.GetToken())
		if _, err := service.Grants.CreateGrant(t.Context(), &apiv1.CreateGrantRequest{Agent: "clerk"}); err != nil {
			t.Fatal(err)
		}
		sessions := map[string]string{"user": w.open(alice, "clerk"), "service": w.open(service, "clerk")}
		for i, c := range []struct {
			kind, origin, recorded string
			code                   protocol.Code
		}{
			{"user", "", "api", ""}, {"user", "cli", "cli", ""},
			{"user", "schedule", "", protocol.CodePermissionDenied}, {"user", "webhook", "", protocol.CodePermissionDenied}, {"user", "agent", "", protocol.CodePermissionDenied},
			{"service", "", "api", ""}, {"service", "schedule", "schedule", ""}, {"service", "webhook", "webhook", ""},
			{"service", "agent", "", protocol.CodePermissionDenied}, {"service", "moon", "", protocol.CodePermissionDenied},
		} {
			by := alice
			if c.kind == "service" {
				by = service
			}
			got, err := by.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: sessions[c.kind], MessageId: "m" + string(rune('a'+i)), Prompt: "hello", Origin: c.origin})
			err = protocol.FromConnect(err)
			if c.code != "" {
				if protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), "may not say that a turn comes from") {
					t.Errorf("%s from %q: %v", c.kind, c.origin, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s from %q: %v", c.kind, c.origin, err)
				continue
			}
			w.awaitTurn(by, got.GetTurn().GetId(), "COMPLETED")
			events, err := by.Events.ListEvents(t.Context(), &apiv1.ListEventsRequest{SessionId: sessions[c.kind], TurnId: got.GetTurn().GetId()})
			if err != nil {
				t.Fatal(err)
			}
			var said map[string]string
			if err := json.Unmarshal([]byte(events.GetEvents()[0].GetData()), &said); err != nil || said["origin"] != c.recorded {
				t.Errorf("%s from %q is recorded as %v, %v", c.kind, c.origin, said, err)
			}
		}
	})
}
