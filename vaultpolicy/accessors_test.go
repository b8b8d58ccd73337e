package vaultpolicy

import (
	"fmt"
	"testing"

	"bivouac/edge/protocol"
)

func TestAccessorsAreLearned(t *testing.T) {
	a := newAccessors()
	one, two := protocol.GrantID("grt_1"), protocol.GrantID("grt_2")
	a.lives(answered{one, "acc-1"})
	a.line("r1", "hash-1")
	a.answer("r1", answered{one, "acc-1"}) // the line came first
	a.lives(answered{two, "acc-2"})
	a.answer("r2", answered{two, "acc-2"})
	if a.complete() {
		t.Error("it knows what no line has said")
	}
	a.line("r2", "hash-2") // the answer did
	if !a.complete() {
		t.Error("it does not know what it was told")
	}
	a.lives(answered{one, "acc-other"})
	if a.complete() {
		t.Error("it knows a token that took another's place, and of which no line has said")
	}
	a.over(one)
	if !a.complete() {
		t.Error("a grant that ended is waited for")
	}
	for written, want := range map[string]protocol.GrantID{"hash-1": one, "hash-2": two, "hash-3": ""} {
		if id, ok := a.find(written); id != want || ok != (want != "") {
			t.Errorf("%s: %s %t", written, id, ok)
		}
	}
	a.line("", "hash-4")
	a.answer("", answered{one, "acc-4"})
	a.line("r5", "")
	if _, ok := a.find("hash-4"); ok {
		t.Error("what has no id was taken for a pair")
	}
}

// What is remembered is bounded, whoever looks tokens up in the same server, and however
// often a grant is renewed.
func TestAccessorsAreBounded(t *testing.T) {
	a := newAccessors()
	id, last := protocol.GrantID("grt_1"), 3*maxUnpaired-1
	a.lives(answered{id, fmt.Sprint("acc-", last)})
	for i := range 3 * maxUnpaired {
		request := fmt.Sprint("r", i)
		a.line("others-"+request, "hash")
		a.answer("lost-"+request, answered{id, "acc"})
		a.line(request, fmt.Sprint("hash-", i))
		a.answer(request, answered{id, fmt.Sprint("acc-", i)})
	}
	if n := len(a.grants); n != eachWritten {
		t.Errorf("%d hashes of one grant", n)
	}
	if len(a.lines.known) > maxUnpaired || len(a.lines.order) > maxUnpaired || len(a.answers.known) > maxUnpaired {
		t.Errorf("%d lines and %d answers wait", len(a.lines.order), len(a.answers.order))
	}
	if got, ok := a.find(fmt.Sprint("hash-", last)); !ok || got != id || !a.complete() {
		t.Error("the last one is not known")
	}
	a.lives(answered{id, "acc-0"})
	if a.complete() {
		t.Error("what is not remembered any more is said to be known")
	}
}

// A device that hashes anew is noticed by the first hash that differs: what is not found
// then is nobody's no longer.
func TestAccessorsOfANewDevice(t *testing.T) {
	a := newAccessors()
	one, two := answered{"grt_1", "acc-1"}, answered{"grt_2", "acc-2"}
	pair := func(request string, x answered, written string) { a.line(request, written); a.answer(request, x) }
	a.lives(one)
	a.lives(two)
	pair("r1", one, "old-1")
	pair("r2", two, "old-2")
	if !a.complete() {
		t.Fatal("what was learned of both is not known")
	}
	pair("r3", one, "new-1") // the same token, written otherwise
	if id, ok := a.find("new-1"); !ok || id != one.grant || a.complete() {
		t.Error("a revocation of the other, as the device writes it now, wakes nobody")
	}
	pair("r4", two, "new-2")
	if !a.complete() {
		t.Error("it is not learned anew")
	}
}
