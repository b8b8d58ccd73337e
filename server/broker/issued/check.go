package issued

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Bounds of a certificate's life. Its connection is made at once; it must outlive what the clocks of two machines differ.
const (
	minTTL = 30 * time.Second
	maxTTL = 15 * time.Minute
)

var (
	commonNameForm = regexp.MustCompile(`^[A-Za-z0-9@_. -]{1,64}$`)
	joined         = regexp.MustCompile(`\}[A-Za-z0-9_-]*\{`)
	placeholder    = regexp.MustCompile(`\{[^{}]*\}`)
	keyIDForm      = regexp.MustCompile(`^[A-Za-z0-9@_./:#?=&%~ -]{1,256}$`)
)

func (f *From) database(bad func(string, ...any)) {
	u, p := f.UsernameHeader, f.PasswordHeader
	if (u == "") != (p == "") {
		bad("username_header and password_header belong together")
	}
	for _, h := range []string{u, p} {
		if h != "" && (!httpguts.ValidHeaderFieldName(h) || secret.ReservedHeader(h)) {
			bad("%q is no header that may carry a credential", h)
		}
	}
	if u != "" && strings.EqualFold(u, p) {
		bad("username_header and password_header must be two")
	}
}

func (f *From) certificate(bad func(string, ...any)) {
	for _, p := range placeholder.FindAllString(f.CommonName, -1) {
		if p != "{tenant}" && p != "{agent}" && p != "{principal}" {
			bad("common_name: %s stands for nothing: there are {tenant}, {agent} and {principal}", p)
		}
	}
	if joined.MatchString(f.CommonName) {
		bad("common_name %q: put a dot between two names: without it one of two tenants is the other", f.CommonName)
	}
	if err := f.Apart(f.Tenants); err != nil {
		bad("%w", err)
	}
	if f.CommonName != "" && !commonNameForm.MatchString(placeholder.ReplaceAllString(f.CommonName, "x")) {
		bad("common_name %q: up to 64 letters, digits, dots, hyphens, underscores, spaces and @", f.CommonName)
	}
	f.life(bad)
	if types := []string{KeyEC, KeyRSA, KeyEd25519}; !slices.Contains(types, f.KeyType) {
		bad("key_type %q: use one of %s", f.KeyType, strings.Join(types, ", "))
	}
}

func (f *From) signature(bad func(string, ...any)) {
	if f.Key != "" && !roleForm.MatchString(f.Key) {
		bad("key %q is no name of a key: letters, digits, dots, hyphens and underscores", f.Key)
	}
	if !slices.Contains(Algorithms, f.Algorithm) {
		bad("algorithm %q: use one of %s (RFC 9421)", f.Algorithm, strings.Join(Algorithms, ", "))
	}
	if f.KeyID != "" && !keyIDForm.MatchString(f.KeyID) {
		bad("key_id %q cannot stand in a header", f.KeyID)
	}
}

func (f *From) life(bad func(string, ...any)) {
	if d, err := time.ParseDuration(f.TTL); err != nil || d < minTTL || d > maxTTL || d%time.Second != 0 {
		bad("ttl %q: whole seconds, from %q to %q", f.TTL, minTTL, maxTTL)
	}
}

// Life of a certificate, of a block that was checked.
func (f *From) Life() time.Duration {
	d, _ := time.ParseDuration(f.TTL)
	return d
}

// Apart refuses a common name that tells agents apart, and not the tenants that have
// them: those of the block, or of the vault block where it names none. An agent's name
// is each tenant's own, so that of two agents one would pass for the other.
func (f *From) Apart(vault []string) error {
	tenants := f.Tenants
	if len(tenants) == 0 {
		tenants = vault
	}
	if len(tenants) < 2 || !strings.Contains(f.CommonName, "{agent}") || strings.Contains(f.CommonName, "{tenant}") || strings.Contains(f.CommonName, "{principal}") {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "common_name %q is the same for agents of one name of %d tenants: write {tenant} into it, such as %q, or name one tenant in tenants",
		f.CommonName, len(tenants), strings.Replace(f.CommonName, "{agent}", "{agent}.{tenant}", 1))
}

// NameFor an agent's action: the common name with whose it is. A name that needs what
// is not known is refused.
func (f *From) NameFor(tenant, agent, principal string) (string, error) {
	if tenant == "" && strings.Contains(f.CommonName, "{tenant}") {
		return "", protocol.Errorf(protocol.CodeInternal, "common_name %q needs the tenant's name, which the action does not bring", f.CommonName)
	}
	return strings.NewReplacer("{tenant}", tenant, "{agent}", agent, "{principal}", principal).Replace(f.CommonName), nil
}

// NamedAlike reports that the common name is the same for everybody.
func (f *From) NamedAlike() bool { return !placeholder.MatchString(f.CommonName) }
