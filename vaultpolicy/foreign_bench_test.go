package vaultpolicy

import (
	"fmt"
	"log/slog"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/audit"
)

// BenchmarkForeignRevocation is one line of the audit about a token that is no grant's,
// as a server writes for whatever else stands on it, with so many grants that live.
func BenchmarkForeignRevocation(b *testing.B) {
	for _, n := range []int{100, 20000} {
		b.Run(fmt.Sprint(n, " grants"), func(b *testing.B) {
			v, from := withGrants(b, n)
			for b.Loop() {
				v.audited(from.written, audit.Change{Matter: audit.Tokens, Accessor: "hmac-of-another"})
			}
			if len(v.look) > 0 {
				b.Error("it woke the loops: some grant is not known by its hash")
			}
		})
	}
}

// BenchmarkForeignPerson is one line about a person who has no grant.
func BenchmarkForeignPerson(b *testing.B) {
	v, from := withGrants(b, 20000)
	for b.Loop() {
		v.audited(from.written, audit.Change{Matter: audit.Tokens, Entity: "another"})
	}
}

// withGrants is a broker that has looked up so many grants, and read the lines of that.
func withGrants(t testing.TB, n int) (*Vault, source) {
	t.Helper()
	_, c := newFake(t)
	v, err := New(Params{Config: config(t), Trust: plainTrust{}, Log: slog.New(slog.DiscardHandler), Client: c})
	if err != nil {
		t.Fatal(err)
	}
	from := source{written: newAccessors()}
	v.follow(from)
	for i := range n {
		request := fmt.Sprint("r", i)
		e := entry{grant: authority.Grant{ID: protocol.GrantID(fmt.Sprint("grt_", i))}, accessor: fmt.Sprint("acc-", i), entity: fmt.Sprint("ent-", i)}
		v.table.made(e)
		v.audited(from.written, audit.Change{Matter: audit.Asked, Request: request, Accessor: fmt.Sprint("hmac-", i)})
		v.lookedUp(request, e)
	}
	return v, from
}
