//go:build linux

package vaultpolicy

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// each runs a benchmark on every engine that is here, each on a server of its own.
func each(b *testing.B, run func(b *testing.B, x *site)) {
	for _, e := range engine.All() {
		b.Run(e.Name, func(b *testing.B) {
			p, err := e.Find(b.Context())
			if err != nil {
				b.Skipf("NOT MEASURED: %v", err)
			}
			run(b, newSite(b, vaulttest.Start(b, p)))
		})
	}
}

// spread of durations, as figures of a benchmark.
func spread(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.5), "ms-p50")
	b.ReportMetric(at(0.99), "ms-p99")
	b.ReportMetric(0, "ns/op")
}

// grants makes many, of some persons, for one credential.
func (x *site) grants(b *testing.B, v *Vault, many, persons int) (out []authority.Grant, sealed [][]byte) {
	b.Helper()
	model := authoritytest.NewGrant("weather")
	x.open(b, model.Tenant, "weather")
	if err := v.PutCredential(b.Context(), model.Tenant, "weather", authoritytest.Seal(b, v, "weather", authoritytest.Value)); err != nil {
		b.Fatal(err)
	}
	people := make([]protocol.PrincipalID, persons)
	for i := range people {
		people[i] = protocol.NewID[protocol.PrincipalKind](time.Now(), rand.Reader)
	}
	for i := range many {
		g := authoritytest.NewGrant("weather")
		g.Tenant, g.Principal = model.Tenant, people[i%persons]
		s, err := v.CreateGrant(b.Context(), g)
		if err != nil {
			b.Fatal(err)
		}
		out, sealed = append(out, g), append(sealed, s)
	}
	return out, sealed
}

// BenchmarkMint is one credential of one action.
func BenchmarkMint(b *testing.B) {
	each(b, func(b *testing.B, x *site) {
		v, _ := x.tells(b, nil)
		grants, sealed := x.grants(b, v, 1, 1)
		use := authoritytest.Use(grants[0], sealed[0], "weather")
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			if _, err := v.Mint(b.Context(), use); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		spread(b, took)
	})
}

// BenchmarkRestart is a broker with a thousand grants, from its start until every one
// of them is answered for.
func BenchmarkRestart(b *testing.B) {
	each(b, func(b *testing.B, x *site) {
		first, _ := x.tells(b, nil)
		grants, _ := x.grants(b, first, 1000, 100)
		var took []time.Duration
		for b.Loop() {
			ctx, cancel := context.WithCancel(b.Context())
			over := make(chan error)
			v := x.vault(b, nil)
			began := time.Now()
			go func() { over <- v.Run(ctx, func(authority.Ended) {}) }()
			for _, g := range grants {
				for v.Alive(ctx, g.ID) != nil {
					time.Sleep(5 * time.Millisecond)
				}
			}
			took = append(took, time.Since(began))
			cancel()
			if err := <-over; err != nil {
				b.Fatal(err)
			}
		}
		spread(b, took)
	})
}

// BenchmarkRevoke is an admin's revocation, from its answer until Alive refuses, with
// a hundred grants in use.
func BenchmarkRevoke(b *testing.B) {
	for name, change := range map[string]func(x *site, c *Config){
		"audit":   func(x *site, c *Config) { c.Audit = &Audit{File: x.AuditFile()} },
		"polling": func(*site, *Config) {},
	} {
		b.Run(name, func(b *testing.B) {
			each(b, func(b *testing.B, x *site) {
				v, _ := x.tells(b, func(c *Config) { change(x, c) })
				grants, _ := x.grants(b, v, 100+b.N, 20)
				stop, idle := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(idle)
					for {
						for _, g := range grants {
							v.Alive(context.Background(), g.ID) // as its open flow asks
						}
						select {
						case <-stop:
							return
						case <-time.After(250 * time.Millisecond):
						}
					}
				}()
				for _, g := range grants {
					until(b, v, g.ID, "")
				}
				var took []time.Duration
				for i, g := range grants[100:] {
					time.Sleep(3*defaultPoll/2 + time.Duration(i*137%1000)*time.Millisecond) // anywhere between two polls
					x.revoke(b, g)
					began := time.Now()
					for v.Alive(b.Context(), g.ID) == nil {
						time.Sleep(time.Millisecond)
					}
					took = append(took, time.Since(began))
				}
				spread(b, took)
				close(stop)
				<-idle
			})
		})
	}
}
