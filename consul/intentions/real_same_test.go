//go:build linux

package intentions_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"bivouac/consul"
	"bivouac/consul/plan"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

const (
	policies = 1000
	inBatch  = 70 // each with two destinations, all under one random entry of "*"
)

var sources = []string{"agent-a", "agent-b", "acme--agent-a", "web"}

// random sources, each once, "*" among them.
func random(r *rand.Rand) (out []consul.Source) {
	names := append(slices.Clone(sources), consul.Wildcard)
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:r.IntN(len(names))] {
		out = append(out, consul.Source{Name: name, Allow: r.IntN(2) == 0})
	}
	return out
}

// One evaluator: a thousand random policies, every pair of each, are decided as Consul's
// own check decides.
func TestDecidesAsConsulDoes(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		pairs, allowed := 0, 0
		for first := 0; first < policies; first += inBatch {
			n, ok := batch(t, at, r, first, min(inBatch, policies-first))
			pairs, allowed = pairs+n, allowed+ok
		}
		if allowed == 0 || allowed == pairs {
			t.Errorf("%d of %d pairs are allowed: nothing was compared", allowed, pairs)
		}
		t.Logf("bench name=%s_policies_compared value=%d unit=pairs", p.Name, pairs)
	})
}

// batch writes policies and compares every pair of them.
func batch(t *testing.T, at *consulserver.Server, r *rand.Rand, first, n int) (pairs, allowed int) {
	t.Helper()
	var names []string
	var all []api.ConfigEntry
	if wild := random(r); len(wild) > 0 {
		all = append(all, entryOf(consul.Intention{Destination: consul.Wildcard, Sources: wild}))
	}
	for k := first; k < first+n; k++ {
		for _, d := range []string{"db", "api"} {
			name := fmt.Sprintf("p%d-%s", k, d)
			names = append(names, name)
			if s := random(r); len(s) > 0 {
				all = append(all, entryOf(consul.Intention{Destination: name, Sources: s}))
			}
		}
	}
	write(t, at, all...)
	token, _ := at.Token(t, plan.Rules(names), 0)
	ours := open(t, at, way{address: at.Address(), token: token, names: names, fresh: time.Hour, grace: time.Hour})
	if err := ours.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	theirs := at.Client(t, secretIn(t, token))
	var g errgroup.Group
	g.SetLimit(8)
	verdicts := make([]bool, len(names)*len(sources))
	for i, name := range names {
		for j, source := range sources {
			g.Go(func() error {
				ok, _, err := theirs.Connect().IntentionCheck(&api.IntentionCheck{Source: source, Destination: name}, nil)
				verdicts[i*len(sources)+j] = ok
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		for j, source := range sources {
			want := verdicts[i*len(sources)+j]
			if d := ours.Decide(source, name, nil); d.Allowed != want || d.Unknown || d.Stale {
				t.Errorf("%s => %s: Consul says %v, we say %+v", source, name, want, d)
			}
			if pairs++; want {
				allowed++
			}
		}
	}
	if all[0].GetName() == consul.Wildcard { // the others' names are of this batch alone
		remove(t, at, all[0])
	}
	return pairs, allowed
}

func remove(t *testing.T, at *consulserver.Server, all ...api.ConfigEntry) {
	t.Helper()
	for _, e := range all {
		if _, err := at.Root(t).ConfigEntries().Delete(e.GetKind(), e.GetName(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// documented are the examples of Consul's own documentation of service-intentions, with
// what it says of them. They lie in the folder of examples.
var documented = []struct {
	source, destination, method, path string
	allowed                           bool
}{
	{"contractor-webapp", "fort-knox", "GET", "/healtz", true},
	{"contractor-webapp", "fort-knox", "HEAD", "/healtz", true},
	{"contractor-webapp", "fort-knox", "POST", "/healtz", false},
	{"contractor-webapp", "fort-knox", "GET", "/vault", false}, // unmatched: the default
	{"admin-dashboard-webapp", "fort-knox", "GET", "/debugz", false},
	{"admin-dashboard-webapp", "fort-knox", "GET", "/debugz/pprof", false},
	{"admin-dashboard-webapp", "fort-knox", "DELETE", "/vault", true},
	{"somebody", "fort-knox", "GET", "/healtz", false},
	{"frontend-web", "billing", "POST", "/mycompany.BillingService/IssueRefund", false},
	{"frontend-web", "billing", "POST", "/mycompany.BillingService/GetInvoice", true},
	{"frontend-web", "billing", "POST", "/mycompany.OtherService/Get", false},
	{"support-portal", "billing", "POST", "/mycompany.BillingService/IssueRefund", true},
}

// L7 by the documentation: from files and from Consul the same, which for Consul's own
// check is a deny in any case.
func TestDocumentedPermissions(t *testing.T) {
	var files []consul.Intention
	for _, name := range []string{"fort-knox", "billing"} {
		path := filepath.Join("..", "examples", "20-"+name+".hcl")
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		in, err := consul.Parse(src, path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, in)
	}
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		overHTTP(t, at)
		for _, in := range files {
			write(t, at, entryOf(in))
		}
		names := []string{"fort-knox", "billing"}
		token, _ := at.Token(t, plan.Rules(names), 0)
		real := open(t, at, way{address: at.Address(), token: token, names: names, fresh: time.Hour, grace: time.Hour})
		if err := real.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		set := consul.NewSet(files...)
		for _, row := range documented {
			r := &consul.Request{Method: row.method, Path: row.path}
			file, server := set.Decide(row.source, row.destination, r), real.Decide(row.source, row.destination, r)
			if file.Allowed != row.allowed || server.Allowed != row.allowed {
				t.Errorf("%+v: by the file %v (%s), by Consul %v (%s)", row, file.Allowed, file.Reason, server.Allowed, server.Reason)
			}
			theirs, _, err := at.Root(t).Connect().IntentionCheck(&api.IntentionCheck{Source: row.source, Destination: row.destination}, nil)
			if err != nil || theirs {
				t.Errorf("%+v: Consul's own check says %v, %v", row, theirs, err)
			}
		}
	})
}

func secretIn(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:len(b)-1])
}
