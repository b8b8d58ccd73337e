package issued

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func line(k ssh.PublicKey) string { return string(ssh.MarshalAuthorizedKey(k)) }

// What an engine signed is used as it was asked for and in no other form: one row for
// each thing that may be wider, another's, or not now. INV-10.
func TestSSHCertificate(t *testing.T) {
	authority, mine, now := newSigner(t), newSigner(t), time.Now()
	f := (&From{Engine: SSH, Role: "agents", Principals: []string{"deploy", "ops"}, CAKeys: []string{line(authority.PublicKey())}}).WithDefaults()
	if p := f.Problems(); len(p) > 0 || f.TTL != "1m" || f.Path() != "ssh/sign/agents" || f.RolePath() != "ssh/roles/agents" {
		t.Fatal(p, f)
	}
	order := Order{Key: mine.PublicKey(), Command: "uptime -p", KeyID: "bivouac action=act_1"}
	for name, c := range map[string]struct {
		change func(*ssh.Certificate)
		by     ssh.Signer
		want   string
	}{
		"as asked":            {},
		"its principals turn": {change: func(c *ssh.Certificate) { c.ValidPrincipals = []string{"ops", "deploy"} }},
		"a slow clock there":  {change: func(c *ssh.Certificate) { c.ValidAfter = uint64(now.Add(20 * time.Second).Unix()) }},
		"another authority":   {by: newSigner(t), want: "which ca_keys does not have"},
		"another key":         {change: func(c *ssh.Certificate) { c.Key = newSigner(t).PublicKey() }, want: "another key"},
		"a host's":            {change: func(c *ssh.Certificate) { c.CertType = ssh.HostCert }, want: "a host's certificate"},
		"an hour":             {change: func(c *ssh.Certificate) { c.ValidBefore = uint64(now.Add(time.Hour).Unix()) }, want: "longer than the 1m"},
		"for ever":            {change: func(c *ssh.Certificate) { c.ValidBefore = ssh.CertTimeInfinity }, want: "the end of time"},
		"over":                {change: func(c *ssh.Certificate) { c.ValidBefore = uint64(now.Unix()) }, want: "it ended"},
		"later":               {change: func(c *ssh.Certificate) { c.ValidAfter = uint64(now.Add(time.Hour).Unix()) }, want: "it begins"},
		"one principal more":  {change: func(c *ssh.Certificate) { c.ValidPrincipals = append(c.ValidPrincipals, "root") }, want: "principals"},
		"one less":            {change: func(c *ssh.Certificate) { c.ValidPrincipals = c.ValidPrincipals[:1] }, want: "principals"},
		"everybody":           {change: func(c *ssh.Certificate) { c.ValidPrincipals = nil }, want: "principals"},
		"another action":      {change: func(c *ssh.Certificate) { c.KeyId = "vault-root" }, want: "key id"},
		"no command":          {change: func(c *ssh.Certificate) { c.CriticalOptions = nil }, want: "force-command"},
		"another command":     {change: func(c *ssh.Certificate) { c.CriticalOptions = map[string]string{ForceCommand: "id"} }, want: "force-command"},
		"another option":      {change: func(c *ssh.Certificate) { c.CriticalOptions["source-address"] = "10.0.0.0/8" }, want: "source-address"},
		"a terminal":          {change: func(c *ssh.Certificate) { c.Extensions = map[string]string{"permit-pty": ""} }, want: "too wide: it has permit-pty"},
	} {
		cert := &ssh.Certificate{
			Key: mine.PublicKey(), CertType: ssh.UserCert, KeyId: order.KeyID, ValidPrincipals: []string{"deploy", "ops"},
			ValidAfter: uint64(now.Add(-30 * time.Second).Unix()), ValidBefore: uint64(now.Add(time.Minute).Unix()),
			Permissions: ssh.Permissions{CriticalOptions: map[string]string{ForceCommand: order.Command}},
		}
		if c.change != nil {
			c.change(cert)
		}
		by := authority
		if c.by != nil {
			by = c.by
		}
		if err := cert.SignCert(rand.Reader, by); err != nil {
			t.Fatal(err)
		}
		got, err := f.SSHCertificate(line(cert), order, now)
		if (c.want == "") != (err == nil && got != nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != "" {
			continue
		}
		cert.Serial++ // after the signature
		if _, err := f.SSHCertificate(line(cert), order, now); err == nil || !strings.Contains(err.Error(), "does not verify") {
			t.Errorf("%s, changed afterwards: %v", name, err)
		}
	}
	for _, text := range []string{"", "nothing", line(mine.PublicKey())} {
		if _, err := f.SSHCertificate(text, order, now); err == nil || !strings.Contains(err.Error(), "no certificate") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A block says who signs in, for how long, and who may have signed it.
func TestSSHProblems(t *testing.T) {
	key := newSigner(t).PublicKey()
	for name, c := range map[string]struct {
		change func(*From)
		want   string
	}{
		"sound": {func(*From) {}, ""},
		"all of it": {func(f *From) {
			f.TTL, f.CAKeys, f.Setup, f.Mount = "5m", []string{line(key), line(newSigner(t).PublicKey())}, true, "hosts/ssh"
		}, ""},
		"no role":           {func(f *From) { f.Role = "" }, "role is missing"},
		"no principal":      {func(f *From) { f.Principals = nil }, "principals is missing"},
		"a pattern":         {func(f *From) { f.Principals = []string{"*"} }, "is none"},
		"two in one":        {func(f *From) { f.Principals = []string{"deploy,root"} }, "is none"},
		"twice":             {func(f *From) { f.Principals = []string{"a", "a"} }, "stands twice"},
		"a day":             {func(f *From) { f.TTL = "24h" }, "ttl"},
		"a known host":      {func(f *From) { f.CAKeys = []string{"web1.example " + line(key)} }, "no public key"},
		"not a key":         {func(f *From) { f.CAKeys = []string{"x"} }, "no public key"},
		"two keys":          {func(f *From) { f.CAKeys = []string{line(key) + line(key)} }, "no public key"},
		"a name in it":      {func(f *From) { f.CommonName = "x" }, "common_name has no meaning"},
		"a header":          {func(f *From) { f.UsernameHeader, f.PasswordHeader = "A", "B" }, "has no meaning"},
		"setup of database": {func(f *From) { *f = From{Engine: Database, Role: "r", Mount: "database", Setup: true} }, "setup has no meaning"},
	} {
		f := (&From{Engine: SSH, Role: "agents", Principals: []string{"deploy"}}).WithDefaults()
		c.change(f)
		p := f.Problems()
		if (c.want == "") != (len(p) == 0) || len(p) > 0 && !strings.Contains(p[0].Error(), c.want) {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// A certificate of SSH goes into no request of HTTP.
func TestSSHIsInNoRequest(t *testing.T) {
	f := (&From{Engine: SSH, Role: "agents", Principals: []string{"deploy"}}).WithDefaults()
	c := Credential{Signer: newSigner(t)}
	r, err := http.NewRequest(http.MethodGet, "https://web1.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, bound := f.Binding()
	if err := f.Put(t.Context(), r, c, "destination web1"); err == nil || bound || len(r.Header) > 0 || len(f.Headers()) > 0 || c.IsZero() {
		t.Errorf("%v %v", err, r.Header)
	}
}
