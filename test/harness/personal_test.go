package harness_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/server/broker/secret"
	"bivouac/test/harness"
)

const packing = `
rule "look" {
  when {
    user_contains = "packing"
    results       = 0
  }
  call "files_list" {
    arguments = { path = "notes" }
  }
}
rule "read and ask for the weather" {
  when {
    user_contains = "packing"
    result_of     = "files_list"
  }
  call "files_read" {
    arguments = { path = "notes/trip.txt" }
  }
  call "forecast" {
    arguments = { city = "Bergen" }
  }
}
rule "write" {
  when {
    user_contains = "packing"
    result_of     = "forecast"
  }
  call "files_write" {
    arguments = { path = "notes/packing.txt", content = "rain jacket\n" }
  }
}
rule "done" {
  when {
    user_contains = "packing"
    result_of     = "files_write"
  }
  text = "It is written."
}
`

// The personal turn end to end: files on the person's machine, a tool with a
// credential that the broker injects, an approved write.
func TestPersonalTurnWithAnApprovedWrite(t *testing.T) {
	harness.Test(t, harness.Options{Script: packing}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		a.Write("trip.txt", "Bergen, three days\n")
		alice.Apply(assistant)
		alice.PutCredential(harness.ToolCredential, harness.ToolKey)
		alice.Grant("assistant", harness.ToolCredential)
		session := alice.Open("assistant")
		turn := alice.Submit(session, "m1", "make a packing list")
		asked := alice.AwaitApproval()
		time.Sleep(time.Minute)
		if got := a.Read("packing.txt"); got != "" {
			t.Errorf("the file was written before it was approved: %q", got)
		}
		if n := len(a.Status().Attempts); n != 0 { // INV-7
			t.Errorf("waiting for approval holds %d leases", n)
		}
		alice.Decide(asked, true)
		if got := alice.Completed(turn); got.GetAnswer() != "It is written." {
			t.Errorf("answer %q", got.GetAnswer())
		}
		if got := a.Read("packing.txt"); got != "rain jacket\n" {
			t.Errorf("the file holds %q", got)
		}
		if got := w.Tools.Requests(); len(got) != 1 || got[0].URI != "/v1/forecast?city=Bergen" {
			t.Errorf("the tool was asked %v", got)
		}
		noSecrets(t, w, alice, session)
	})
}

// noSecrets: the upstream echoed its key, and neither the events nor any log has
// it. INV-17.
func noSecrets(t *testing.T, w *harness.World, p *harness.Person, session string) {
	t.Helper()
	var all strings.Builder
	all.WriteString(w.Log.Text())
	for _, e := range p.EventsOf(session) {
		all.WriteString(e.GetData() + e.GetPayload() + string(e.GetStored()))
	}
	for _, key := range []string{harness.ModelKey, harness.ToolKey, harness.OtherKey} {
		v, err := secret.New(key)
		if err != nil {
			t.Fatal(err)
		}
		if secret.NewRedactor(v).Found(all.String()) {
			t.Errorf("an event or a log holds a credential")
		}
		if !secret.NewRedactor(v).Found(all.String() + key) {
			t.Errorf("a planted credential is not found")
		}
	}
}
