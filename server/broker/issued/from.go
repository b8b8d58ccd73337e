package issued

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/protocol"
)

// Engines that issue credentials.
const (
	// Database makes a user of a database for the action.
	Database = "database"
	// PKI signs a client certificate for a key that the broker makes.
	PKI = "pki"
	// Transit signs each request with a key that never leaves the server.
	Transit = "transit"
	// SSH signs a key that the broker makes, as a certificate for one command.
	SSH = "ssh"
)

// From is the block of a credential that says which engine issues it.
type From struct {
	Engine string `hcl:"engine,label"`
	// Mount of the engine. Default: its name.
	Mount string `hcl:"mount,optional"`
	// Role of the engine, which its admin made: what is issued can do what that says.
	Role string `hcl:"role,optional"`
	// Tenants, by id, whose grants may use it. Default: those of the vault block.
	Tenants []string `hcl:"tenants,optional"`

	// UsernameHeader and PasswordHeader carry the two of a database user. Default: both
	// in Authorization, as Basic (RFC 7617).
	UsernameHeader string `hcl:"username_header,optional"`
	PasswordHeader string `hcl:"password_header,optional"`

	// CommonName of a client certificate (pki), in which {tenant}, {agent} and
	// {principal} may stand for whose action it is. An agent's name is its tenant's own:
	// where more than one may use it, {agent} goes with {tenant} or {principal}.
	CommonName string `hcl:"common_name,optional"`
	// TTL of a certificate. Default "2m" (pki), "1m" (ssh), of which a sign-in needs seconds.
	TTL string `hcl:"ttl,optional"`
	// KeyType of a client certificate: "ec" (default, P-256), "rsa" (2048) or "ed25519".
	KeyType string `hcl:"key_type,optional"`

	// Key of transit, which signs, with an Algorithm of RFC 9421. Default "ed25519".
	Key       string `hcl:"key,optional"`
	Algorithm string `hcl:"algorithm,optional"`
	// KeyID by which the upstream knows the key. Default: the name of Key.
	KeyID string `hcl:"key_id,optional"`

	// Principals of a certificate of ssh, all of them and no other.
	Principals []string `hcl:"principals,optional"`
	// CAKeys that may have signed it, as authorized_keys has keys: whoever changes the
	// engine's own is found out. Default: whichever it signs with.
	CAKeys []string `hcl:"ca_keys,optional"`
	// Setup has `bivouac vault setup` make the engine of ssh, with its key and role.
	// Default: its admin does.
	Setup bool `hcl:"setup,optional"`

	Range hcl.Range `hcl:",def_range"`
}

// uses of fields by engines: what one needs, and what it may have beside mount and
// tenants, which all may.
var uses = map[string]struct{ needs, takes string }{
	Database: {"role", "role username_header password_header"},
	PKI:      {"role common_name", "role common_name ttl key_type"},
	Transit:  {"key", "key algorithm key_id"},
	SSH:      {"role principals", "role principals ttl ca_keys setup"},
}

// Key types of certificates.
const (
	KeyEC      = "ec"
	KeyRSA     = "rsa"
	KeyEd25519 = "ed25519"
)

// Known engines.
func Known() []string { return slices.Sorted(maps.Keys(uses)) }

// WithDefaults fills what a file left out.
func (f *From) WithDefaults() *From {
	if f == nil {
		return nil
	}
	out := *f
	out.Mount = cmp.Or(out.Mount, f.Engine)
	switch f.Engine {
	case PKI:
		out.TTL, out.KeyType = cmp.Or(out.TTL, "2m"), cmp.Or(out.KeyType, KeyEC)
	case SSH:
		out.TTL = cmp.Or(out.TTL, "1m")
	case Transit:
		out.Algorithm, out.KeyID = cmp.Or(out.Algorithm, Ed25519), cmp.Or(out.KeyID, out.Key)
	}
	return &out
}

var (
	mountForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}(/[a-z0-9][a-z0-9_-]{0,63})*$`)
	roleForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
)

// own paths of the server, at which no engine of an admin's is.
var own = []string{"sys", "auth", "identity", "cubbyhole"}

// Problems of a block with its defaults: all of them, without their place.
func (f *From) Problems() (out []error) {
	bad := func(format string, args ...any) {
		out = append(out, fmt.Errorf("from %q: "+format, append([]any{f.Engine}, args...)...))
	}
	use, known := uses[f.Engine]
	if !known {
		bad("this engine is not known: use one of %s", strings.Join(Known(), ", "))
		return out
	}
	given := f.given()
	for _, field := range strings.Fields(use.needs) {
		if !given[field] {
			bad("%s is missing", field)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(given)) {
		if given[field] && !slices.Contains(strings.Fields(use.takes), field) {
			bad("%s has no meaning there: it takes mount, tenants, %s", field, strings.ReplaceAll(use.takes, " ", ", "))
		}
	}
	first, _, _ := strings.Cut(f.Mount, "/")
	switch {
	case !mountForm.MatchString(f.Mount):
		bad("mount %q is no mount: lower-case letters, digits, hyphens and underscores, without a slash at either end", f.Mount)
	case slices.Contains(own, first):
		bad("mount %q is the server's own, and issues no credential", f.Mount)
	}
	if f.Role != "" && !roleForm.MatchString(f.Role) {
		bad("role %q is no name of a role: letters, digits, dots, hyphens and underscores", f.Role)
	}
	for _, t := range f.Tenants {
		if _, err := protocol.ParseID[protocol.TenantKind](t); err != nil {
			bad("tenants: %w", err)
		}
	}
	switch f.Engine {
	case Database:
		f.database(bad)
	case PKI:
		f.certificate(bad)
	case Transit:
		f.signature(bad)
	case SSH:
		f.signIn(bad)
	}
	return out
}

// given says which fields a file has, of those that not every engine takes.
func (f *From) given() map[string]bool {
	return map[string]bool{
		"role": f.Role != "", "username_header": f.UsernameHeader != "", "password_header": f.PasswordHeader != "",
		"common_name": f.CommonName != "", "ttl": f.TTL != "", "key_type": f.KeyType != "",
		"key": f.Key != "", "algorithm": f.Algorithm != "", "key_id": f.KeyID != "",
		"principals": len(f.Principals) > 0, "ca_keys": len(f.CAKeys) > 0, "setup": f.Setup,
	}
}

// For reports whether a tenant's grants may use it.
func (f *From) For(t protocol.TenantID) bool {
	return len(f.Tenants) == 0 || slices.Contains(f.Tenants, t.String())
}

// Path of the engine that a credential is asked of.
func (f *From) Path() string {
	switch {
	case f.Engine == PKI || f.Engine == SSH:
		return f.Mount + "/sign/" + f.Role
	case f.Engine == Transit && f.Algorithm == HMACSHA256:
		return f.Mount + "/hmac/" + f.Key + "/sha2-256"
	case f.Engine == Transit:
		return f.Mount + "/sign/" + f.Key
	}
	return f.Mount + "/creds/" + f.Role
}

// RolePath is where an admin reads what it issues.
func (f *From) RolePath() string {
	if f.Engine == Transit {
		return f.Mount + "/keys/" + f.Key
	}
	return f.Mount + "/roles/" + f.Role
}

// String says it as people do: "database role reports-ro at database/".
func (f *From) String() string {
	if f.Engine == Transit {
		return "transit key " + f.Key + " at " + f.Mount + "/"
	}
	return f.Engine + " role " + f.Role + " at " + f.Mount + "/"
}

// Headers that what is issued travels in; a certificate in none.
func (f *From) Headers() []string {
	switch {
	case f.Engine == PKI || f.Engine == SSH:
		return []string{}
	case f.Engine == Transit:
		return []string{"Signature", "Signature-Input", "Content-Digest"}
	case f.UsernameHeader != "":
		return []string{f.UsernameHeader, f.PasswordHeader}
	}
	return []string{"Authorization"}
}

// Named is what each name of a credential stands for in one file: an engine's, or,
// with nil, a value that is stored.
type Named map[string]*From

// Add notes where a name stands. One name is one credential: grants name nothing else.
func (n Named) Add(name string, f *From) error {
	before, seen := n[name]
	n[name] = f
	if !seen || same(before, f) {
		return nil
	}
	return fmt.Errorf("credential %q stands for %s elsewhere in this file, and here for %s: grants go by the name alone, so give one of them another", name, before.what(), f.what())
}

func (f *From) what() string {
	if f == nil {
		return "a value that is stored"
	}
	return f.String()
}

// same leaves out where the blocks stand.
func same(a, b *From) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Range, y.Range = hcl.Range{}, hcl.Range{}
	return reflect.DeepEqual(x, y)
}
