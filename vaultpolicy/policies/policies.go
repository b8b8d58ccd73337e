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
	"strconv"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
)

//go:embed bivouac-broker.hcl
var broker string

//go:embed bivouac-grant.hcl
var grant string

//go:embed bivouac-use.hcl
var use string

//go:embed bivouac-route.hcl
var route string

//go:embed bivouac-use-database.hcl
var useDatabase string

//go:embed bivouac-use-pki.hcl
var usePKI string

//go:embed bivouac-use-transit.hcl
var useTransit string

//go:embed bivouac-use-ssh.hcl
var useSSH string

// useOf engines that issue credentials.
var useOf = map[string]string{issued.Database: useDatabase, issued.PKI: usePKI, issued.Transit: useTransit, issued.SSH: useSSH}

// Names of everything of one deployment in a server. The policies as they are have
// those of the prefix "bivouac"; a second deployment needs another.
type Names struct {
	Prefix string
	// Mounts of the engines.
	Grants, Credentials, Transit string
}

// DefaultPrefix of names.
const DefaultPrefix = "bivouac"

// NamesOf a prefix.
func NamesOf(prefix string) Names {
	return Names{Prefix: prefix, Grants: prefix + "-grants", Credentials: prefix + "-credentials", Transit: prefix + "-transit"}
}

// BrokerPolicy is the name of what the broker's login may do.
func (n Names) BrokerPolicy() string { return n.Prefix + "-broker" }

// GrantPolicy is the name of what every grant may do.
func (n Names) GrantPolicy() string { return n.Prefix + "-grant" }

// GrantRole is the token role that makes grants.
func (n Names) GrantRole() string { return n.Prefix + "-grant" }

// RoutesPolicy is the name of what the broker reads for routes.
func (n Names) RoutesPolicy() string { return n.Prefix + "-routes" }

// UsePolicy is the name of the policy that reads one credential.
func (n Names) UsePolicy(c Credential) string {
	return n.Prefix + "-use-" + c.Tenant.String() + "-" + c.Name
}

// UseGlob matches every such policy.
func (n Names) UseGlob() string { return n.Prefix + "-use-*" }

// ReceiptKey signs receipts.
func (n Names) ReceiptKey() string { return n.Prefix + "-receipts" }

// Credential of a tenant.
type Credential struct {
	Tenant protocol.TenantID
	Name   string
}

// Opened is a credential that grants may reach.
type Opened struct {
	Credential
	// From is the engine that issues it; nil: it is stored.
	From *issued.From
}

// Broker is the policy of the broker's login.
func (n Names) Broker() string { return n.in(broker) }

// Grant is the policy of every grant.
func (n Names) Grant() string { return n.in(grant) }

// Use is the policy that reads one credential, or has its engine issue it. What of an
// engine stands in it was checked (issued.From.Problems).
func (n Names) Use(o Opened) string {
	if o.From == nil {
		return o.in(n.in(use))
	}
	f := o.From
	_, rules, _ := strings.Cut(useOf[f.Engine], "\npath ") // what stands before it speaks of the words below
	name := strconv.Quote(f.CommonName)
	if !f.NamedAlike() {
		name = ""
	}
	return "# " + o.Name + ": " + f.String() + "\npath " + strings.NewReplacer(
		"MOUNT", f.Mount, "ROLE", f.Role, "PATH", f.Path(), `"NAME"`, name, "TTL", TTLOf(f), "PRINCIPALS", strings.Join(f.Principals, ","), "KEYID", KeyIDOf(o.Tenant),
	).Replace(rules)
}

// KeyIDOf a certificate of SSH, as it begins: who reads it at the host knows whose action
// it was.
func KeyIDOf(t protocol.TenantID) string { return "bivouac tenant=" + t.String() }

// TTLOf a certificate, in the form in which it is asked for.
func TTLOf(f *issued.From) string { return strconv.Itoa(int(f.Life().Seconds())) + "s" }

// Routes is the policy with which the broker reads the keys that are bound to
// routes.
func (n Names) Routes(keys []Credential) string {
	sorted := slices.SortedFunc(slices.Values(keys), func(a, b Credential) int {
		return cmp.Or(strings.Compare(a.Tenant.String(), b.Tenant.String()), strings.Compare(a.Name, b.Name))
	})
	var b strings.Builder
	b.WriteString("# The keys of model routes and registries, as broker.hcl binds them.\n")
	for _, c := range slices.Compact(sorted) {
		_, rule, _ := strings.Cut(c.in(n.in(route)), "\npath ")
		b.WriteString("path " + rule)
	}
	return b.String()
}

// in puts the names into a policy. Mounts go first: they begin with the prefix.
func (n Names) in(text string) string {
	d := NamesOf(DefaultPrefix)
	return strings.NewReplacer(
		`"`+d.Grants+`/`, `"`+n.Grants+`/`,
		`"`+d.Credentials+`/`, `"`+n.Credentials+`/`,
		`"`+d.Transit+`/`, `"`+n.Transit+`/`,
		d.Prefix+"-", n.Prefix+"-",
	).Replace(text)
}

func (c Credential) in(text string) string {
	return strings.NewReplacer("TENANT/CREDENTIAL", c.Tenant.String()+"/"+c.Name).Replace(text)
}
