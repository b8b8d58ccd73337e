package vaultpolicy

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
)

// decode reads a vault block. elsewhere: files that it names are on the broker's
// machine, which need not be this one.
func decode(body hcl.Body, dir string, getenv func(string) string, elsewhere bool) (Config, error) {
	var c Config
	var problems []error
	for _, d := range gohcl.DecodeBody(body, nil, &c) {
		if d.Severity == hcl.DiagError {
			file := "vault"
			if d.Subject != nil {
				file = d.Subject.Filename
			}
			problems = append(problems, fmt.Errorf("%s: %s: %s", place(d.Subject, file), d.Summary, d.Detail))
		}
	}
	c.Dir, c.file = dir, body.MissingItemRange().Filename
	c = c.withDefaults(getenv)
	if len(problems) == 0 {
		problems = c.problems(elsewhere)
	}
	if len(problems) > 0 {
		return Config{}, protocol.Errorf(protocol.CodeInvalidArgument, "the vault block is refused:\n%w", errors.Join(problems...))
	}
	return c, nil
}

// check gathers problems.
type check struct {
	elsewhere bool
	problems  []error
}

func (k *check) bad(format string, args ...any) {
	k.problems = append(k.problems, fmt.Errorf(format, args...))
}

var (
	prefixForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	mountForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}(/[a-z0-9][a-z0-9_-]{0,63})*$`)
	roleForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
)

// problems of a configuration with its defaults: all of them.
func (c Config) problems(elsewhere bool) []error {
	k := &check{elsewhere: elsewhere}
	if c.Address == "" {
		k.bad("address is missing, and neither VAULT_ADDR nor BAO_ADDR says it")
	} else if err := client.CheckAddress(c.Address); err != nil {
		k.bad("%w", err)
	}
	k.file("ca_file", c.path(c.CAFile), filemode.Policy)
	if !prefixForm.MatchString(c.Prefix) {
		k.bad("prefix %q: lower-case letters, digits and hyphens, at most 32", c.Prefix)
	}
	for _, t := range c.Tenants {
		if _, err := protocol.ParseID[protocol.TenantKind](t); err != nil {
			k.bad("tenants: %w", err)
		}
	}
	k.mounts(c)
	poll := k.duration("poll", c.PollText, 500*time.Millisecond, time.Minute)
	grace := k.duration("grace", c.GraceText, 2*time.Second, 5*time.Minute)
	if poll > 0 && grace > 0 && grace < 2*poll {
		k.bad("grace %s must be at least twice poll %s: one lost answer would refuse every grant", c.GraceText, c.PollText)
	}
	k.duration("period", c.PeriodText, time.Minute, 32*24*time.Hour)
	if c.TokensPerSecond < -1 || c.TokensPerSecond > 1_000_000 {
		k.bad("tokens_per_second %d must be 1 to 1000000, or left out for no limit", c.TokensPerSecond)
	}
	k.auth(c)
	k.audit(c)
	return k.problems
}

func (k *check) duration(field, text string, least, most time.Duration) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		k.bad("%s %q: a duration from %q to %q", field, text, least, most)
		return 0
	}
	return d
}

func (k *check) mounts(c Config) {
	n := c.names()
	for field, name := range sorted(map[string]string{"grants": n.Grants, "credentials": n.Credentials, "transit": n.Transit}) {
		if !mountForm.MatchString(name) {
			k.bad("mounts: %s %q is no mount: lower-case letters, digits, hyphens and underscores", field, name)
		}
	}
	if n.Grants == n.Credentials || n.Grants == n.Transit || n.Credentials == n.Transit {
		k.bad("mounts: grants, credentials and transit must be three")
	}
}

func (k *check) file(field, path string, mode func(...string) error) {
	if path == "" {
		return
	}
	if _, err := os.Stat(path); k.elsewhere && errors.Is(err, fs.ErrNotExist) {
		return
	} else if err != nil {
		k.bad("%s: %w", field, err)
	} else if err := mode(path); err != nil {
		k.bad("%s: %w", field, err)
	}
}

// uses of fields by login methods: what a method needs, and what it may have.
var uses = map[string]struct{ needs, takes string }{
	login.AppRole: {"secret_id_file", "mount role role_id role_id_file secret_id_file secret_id_wrapped"},
	login.JWT:     {"file", "mount role file bound_audiences bound_subject user_claim"},
	login.Cert:    {"cert_file key_file issuer_file common_name", "mount role cert_file key_file issuer_file common_name"},
	login.Token:   {"file", "file"},
}

func (k *check) auth(c Config) {
	if c.Auth == nil {
		k.bad(`auth is missing: say how the broker logs in, such as auth "approle" { role_id = "…" secret_id_file = "…" }; a token never stands in this file`)
		return
	}
	a := *c.Auth
	use, known := uses[a.Method]
	if !known {
		k.bad("auth %q is not known: use approle, jwt, cert or token", a.Method)
		return
	}
	given := map[string]bool{
		"mount": a.Mount != "", "role": a.Role != "", "role_id": a.RoleID != "", "role_id_file": a.RoleIDFile != "",
		"secret_id_file": a.SecretIDFile != "", "secret_id_wrapped": a.SecretIDWrapped != "", "file": a.File != "", "cert_file": a.CertFile != "", "issuer_file": a.IssuerFile != "", "common_name": a.CommonName != "", "key_file": a.KeyFile != "",
		"bound_audiences": len(a.Audiences) > 0, "bound_subject": a.Subject != "", "user_claim": a.UserClaim != "",
	}
	for _, field := range strings.Fields(use.needs) {
		if !given[field] {
			k.bad("auth %q: %s is missing", a.Method, field)
		}
	}
	for field, is := range sorted(given) {
		if is && !strings.Contains(" "+use.takes+" ", " "+field+" ") {
			k.bad("auth %q: %s has no meaning there", a.Method, field)
		}
	}
	if a.Method == login.AppRole && (a.RoleID == "") == (a.RoleIDFile == "") {
		k.bad(`auth "approle": either role_id or role_id_file`)
	}
	if a.SecretIDWrapped != "" && c.path(a.SecretIDWrapped) == c.path(a.SecretIDFile) {
		k.bad(`auth "approle": secret_id_wrapped and secret_id_file must be two files: what was in the one is kept in the other`)
	}
	if a.Method == login.JWT && len(a.Audiences) == 0 && a.Subject == "" {
		k.bad(`auth "jwt": bound_audiences or bound_subject must say whose JWT is meant: setup would make a role for everybody's`)
	}
	if a.Mount != "" && !mountForm.MatchString(a.Mount) {
		k.bad("auth %q: mount %q is no mount", a.Method, a.Mount)
	}
	if a.Role != "" && !roleForm.MatchString(a.Role) {
		k.bad("auth %q: role %q is no name of a role", a.Method, a.Role)
	}
	// Files of secrets may come after the configuration; who may read them counts when
	// they are there.
	for field, path := range sorted(map[string]string{"secret_id_file": a.SecretIDFile, "secret_id_wrapped": a.SecretIDWrapped, "file": a.File, "key_file": a.KeyFile}) {
		if path != "" {
			if err := filemode.Secret(c.path(path)); err != nil {
				k.bad("auth %q: %s: %w", a.Method, field, err)
			}
		}
	}
}

func (k *check) audit(c Config) {
	if c.Audit == nil {
		return
	}
	if (c.Audit.File == "") == (c.Audit.Socket == "") {
		k.bad("audit: either file or socket")
	}
	for field, path := range sorted(map[string]string{"file": c.Audit.File, "socket": c.Audit.Socket}) {
		if path == "" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(c.path(path))); k.elsewhere && errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			k.bad("audit: the folder of %s: %w", field, err)
		} else if !info.IsDir() {
			k.bad("audit: %s is not in a folder", field)
		}
	}
}

// isAuthority refuses a certificate that signs no other. Pinned by itself, a
// certificate would not be told from another one of the same serial number by every
// release of these servers.
func isAuthority(text []byte) error {
	block, _ := pem.Decode(text)
	if block == nil {
		return errors.New("holds no certificate (PEM)")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if !cert.IsCA {
		return errors.New("is no authority: name the certificate that signs the broker's, not the broker's own")
	}
	return nil
}

// sorted ranges over fields in one order, so that problems come in one.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// readLine reads a short file of one line.
func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	if text == "" || len(text) > 1024 || strings.ContainsAny(text, "\n\r") {
		return "", fmt.Errorf("%s does not hold one line", path)
	}
	return text, nil
}
