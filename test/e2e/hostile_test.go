//go:build linux

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A hostile agent, worker, machine, MCP server and upstream try to obtain a credential,
// each with all that it rightfully has and everything that it can think of. Every
// credential in play is known to the test to the byte, and afterwards none of them, in
// any usual encoding, is in anything that was seen by anybody beside the broker, the
// server that holds it and the upstream that it is for. INV-12, INV-17.
func TestHostilePartiesGetNoCredential(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with a real server")
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		began := time.Now().Add(-time.Second)
		x := newHostile(t, p)
		stop := x.evidence.watch(x.Stack)
		turns := append(x.machines(began), x.upstreams()...)
		stop()
		x.rest(turns...)
		x.over()
		x.judge()
	})
}

// upstreams and MCP servers show what they are sent, to an agent that asks them to.
func (x *hostile) upstreams() (turns []string) {
	x.t.Helper()
	for _, take := range takes {
		turns = append(turns, x.use(take.alias))
	}
	turns = append(turns, x.use("search"))
	for _, alias := range []string{"take_key", "take_split", "search"} {
		turns = append(turns, x.doubt(alias)...)
	}
	return turns
}

// machines run the agent's commands; one has another worker, and one is in its owner's
// own hands.
func (x *hostile) machines(began time.Time) (turns []string) {
	x.t.Helper()
	notes := filepath.Join(x.home, "notes")
	x.write(filepath.Join(notes, "a"), "a-note\n", 0o644)
	edge := x.addEdge(stack.EdgeConfig{Name: "honest", Folders: []string{"notes=" + notes + ":rw"}})
	turns = append(x.pry(notes), x.burgle(began, edge)...)

	wilma := newPerson(x.t, x.Stack, "", "wilma", false)
	x.allow(wilma, "burglar")
	bin := x.t.TempDir()
	if err := stack.Compile(bin, "", "bivouac/test/e2e/hostileworker"); err != nil {
		x.t.Fatal(err)
	}
	wilma.addEdge(stack.EdgeConfig{Name: "replaced", Worker: filepath.Join(bin, "hostileworker")})
	turn := wilma.ended(wilma.submit("run", "hello", "--agent", "burglar", "--workspace", wilma.project("replaced", map[string]string{"a": "a\n"})).ID)
	x.evidence.note("what the replaced worker saw", []byte(turn.GetAnswer()+turn.GetMessage()))
	x.worker(turn)

	mallory := newPerson(x.t, x.Stack, "", "mallory", false)
	x.allow(mallory, "burglar")
	x.plunder(mallory, x.rogue(mallory, "rogue"), x.rogue(newPerson(x.t, x.Stack, "", "trudy", false), "other"))
	return turns
}
