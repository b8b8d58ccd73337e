//go:build linux

package e2e

import (
	"strings"
	"testing"
	"time"

	"bivouac/test/e2e/stack"
)

// Two tenants, and a second person in one of them, each with a canary in a
// workspace, a session and its projection, an artifact, a credential and a file on
// a machine. Every way from one to the other ends as if nothing were there, every
// own way works, and a machine that mounts the wrong folder is found out by the
// same search. INV-9, INV-12.
func TestTenantsAreApart(t *testing.T) {
	v := newVault(t)
	s := newStack(t, stack.Config{Script: tenantScript, Destinations: []stack.Destination{{Name: "ledger", URL: v.URL, Credential: "local-" + canary("nobody", "x")}}})
	began := time.Now().Add(-time.Second)
	ruth := &owned{person: newPerson(t, s, "red", "ruth", true), tenant: "red"}
	bert := &owned{person: newPerson(t, s, "blue", "bert", true), tenant: "blue"}
	carol := &owned{person: newPerson(t, s, "red", "carol", false), tenant: "red"}
	for _, o := range []*owned{ruth, bert} {
		o.settle(v)
		o.machine()
		o.own(began)
	}
	carol.crosses(ruth, true, byCommand) // while she knows nothing of Ruth's machine
	// Carol has no machine: Ruth lends hers for turns, and nothing else of it.
	ruth.must("edge", "bind", ruth.things["runner"], carol.id, "--action", "turn")
	carol.lent = "laptop-ruth"
	carol.own(began)

	for _, o := range []*owned{ruth, bert, carol} {
		o.useOwn()
		o.lists()
	}
	bert.crosses(ruth, false, byCommand)
	ruth.crosses(bert, false, byAPI)
	bert.crosses(carol, false, byAPI)
	ruth.crosses(carol, true, byAPI) // an admin is no reader of others' conversations
	modelSawOneEach(t, s)

	wrongMount(t, bert, ruth, began)
	newPerson(t, s, ruth.tenant, "rita", true) // a tenant's last admin may not disable herself
	ruth.may()
}

// useOwn looks at the own things with the agent's eyes, and tries another's file.
func (o *owned) useOwn() {
	o.t.Helper()
	session := o.things["session"]
	o.talk(session, "what did I tell you?")
	o.wantOnly("the conversation", conversation(o.t, lastReceived(o.Stack).Body), o.session)
	fetched := o.talk(session, "whose key is it?").GetAnswer()
	if !strings.Contains(fetched, `"key_of":"`+o.tenant+`"`) || strings.Contains(fetched, "canary-") {
		o.t.Errorf("%s fetched with its key: %q", o.name, fetched)
	}
	read := o.talk(session, "read notes/secret.txt").GetAnswer()
	if o.edge == nil {
		if strings.Contains(read, "canary-") {
			o.t.Errorf("%s has no machine and reads %q", o.name, read)
		}
		return
	}
	o.wantOnly("the folder on the machine", read, o.runner)
}

// modelSawOneEach: no request to the model holds what belongs to two people.
func modelSawOneEach(t *testing.T, s *stack.Stack) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range s.Received() {
		owners := map[string]bool{}
		for _, m := range canaries.FindAllStringSubmatch(string(r.Body), -1) {
			owners[m[1]], seen[m[1]] = true, true
		}
		if len(owners) > 1 {
			t.Errorf("a request to the model is about %v", owners)
		}
	}
	if len(seen) != 3 {
		t.Errorf("the model saw canaries of %v, want all three", seen)
	}
}

// wrongMount gives a machine a toolchain that is another's home. The search that
// found nothing before must find it, or it never looked.
func wrongMount(t *testing.T, o, other *owned, began time.Time) {
	t.Helper()
	if err := o.edge.Daemon.End(); err != nil {
		t.Fatal(err)
	}
	o.addEdge(stack.EdgeConfig{Name: "wrong", Toolchains: []string{"tools=" + other.home}})
	found := strangers(o.code(look(began)).GetAnswer(), o.name)
	for _, want := range []string{other.workspace, other.runner} {
		if !strings.Contains(strings.Join(found, " "), want) {
			t.Errorf("the search is blind: with %s mounted it found %v, not %s", other.home, found, want)
		}
	}
}
