// Package policies holds what the broker's login, grants and credentials may do in
// Vault or OpenBao, as the policies that an admin reads there.
//
// The files beside it are policies as they are: any of them can be written with
// `vault policy write`. This package puts names of mounts, tenants and credentials
// into them and adds no rule. Test it with go test alone; vaultpolicy proves the
// rules against real servers.
package policies

import (
	"cmp"
	_ "embed" // the policies
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// Names of policies and of the token role.
const (
	BrokerName = "bivouac-broker"
	GrantName  = "bivouac-grant"
	RoutesName = "bivouac-routes"
	// GrantRole makes grants.
	GrantRole = "bivouac-grant"
	usePrefix = "bivouac-use-"
	// UseGlob matches every policy of a credential.
	UseGlob = usePrefix + "*"
)

//go:embed bivouac-broker.hcl
var broker string

//go:embed bivouac-grant.hcl
var grant string

//go:embed bivouac-use.hcl
var use string

//go:embed bivouac-route.hcl
var route string

// Mounts of the engines. The policies as they are have Defaults.
type Mounts struct {
	Grants, Credentials, Transit string
}

// Defaults are the mounts of the policies as they are.
var Defaults = Mounts{Grants: "bivouac-grants", Credentials: "bivouac-credentials", Transit: "bivouac-transit"}

// Credential of a tenant.
type Credential struct {
	Tenant protocol.TenantID
	Name   string
}

// Broker is the policy of the broker's login.
func Broker(m Mounts) string { return m.in(broker) }

// Grant is the policy of every grant.
func Grant(Mounts) string { return grant }

// UseName is the name of the policy that reads one credential.
func UseName(c Credential) string { return usePrefix + c.Tenant.String() + "-" + c.Name }

// Use is the policy that reads one credential.
func Use(m Mounts, c Credential) string { return c.in(m.in(use)) }

// Routes is the policy with which the broker reads the keys that are bound to
// routes.
func Routes(m Mounts, keys []Credential) string {
	sorted := slices.SortedFunc(slices.Values(keys), func(a, b Credential) int {
		return cmp.Or(strings.Compare(a.Tenant.String(), b.Tenant.String()), strings.Compare(a.Name, b.Name))
	})
	var b strings.Builder
	b.WriteString("# The keys of model routes and registries, as broker.hcl binds them.\n")
	for _, c := range slices.Compact(sorted) {
		_, rule, _ := strings.Cut(c.in(m.in(route)), "\npath ")
		b.WriteString("path " + rule)
	}
	return b.String()
}

// in puts the names of mounts into a policy.
func (m Mounts) in(text string) string {
	return strings.NewReplacer(
		`"`+Defaults.Grants+`/`, `"`+m.Grants+`/`,
		`"`+Defaults.Credentials+`/`, `"`+m.Credentials+`/`,
		`"`+Defaults.Transit+`/`, `"`+m.Transit+`/`,
	).Replace(text)
}

func (c Credential) in(text string) string {
	return strings.NewReplacer("TENANT/CREDENTIAL", c.Tenant.String()+"/"+c.Name).Replace(text)
}
