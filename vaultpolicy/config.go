package vaultpolicy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/plan"
	"bivouac/vaultpolicy/policies"
)

// Config is the vault block of broker.hcl.
type Config struct {
	// Address such as https://vault.example:8200. Default: BAO_ADDR, else VAULT_ADDR.
	Address string `hcl:"address,optional"`
	// CAFile holds certificates (PEM) to trust instead of the machine's. Default:
	// BAO_CACERT, else VAULT_CACERT.
	CAFile string `hcl:"ca_file,optional"`
	// Namespace of OpenBao or Vault Enterprise. Default: BAO_NAMESPACE, else
	// VAULT_NAMESPACE, else the root.
	Namespace string `hcl:"namespace,optional"`
	// Tenants, by id, for whose credentials policies are made.
	Tenants []string `hcl:"tenants,optional"`
	// Prefix of every name in the server. Default "bivouac"; a second deployment in
	// the same server needs another.
	Prefix string `hcl:"prefix,optional"`
	// Mounts, where they are not <prefix>-grants and so on.
	Mounts *Mounts `hcl:"mounts,block"`
	// Auth says how the broker logs in.
	Auth *Auth `hcl:"auth,block"`
	// PollText is how often grants in use are looked up. Default "2s".
	PollText string `hcl:"poll,optional"`
	// GraceText is how long grants in use stay good while the server is silent. Default
	// "15s".
	GraceText string `hcl:"grace,optional"`
	// PeriodText is how long a grant outlives a broker that does not renew it. Default
	// "72h".
	PeriodText string `hcl:"period,optional"`
	// TokensPerSecond that each address may make at each node of the server, as a rate
	// limit of auth/token/create that setup applies. It is everybody's, not the broker's
	// alone. Zero or -1: none, which is the default.
	TokensPerSecond int `hcl:"tokens_per_second,optional"`
	// Audit wakes the broker as soon as the server has written down what was asked.
	Audit *Audit `hcl:"audit,block"`
	// Dir that relative file names start from.
	Dir string

	file  string  // whose block it is
	flags *string // with which a command about it was called; nil: by none
}

// Mounts of the engines.
type Mounts struct {
	Grants      string `hcl:"grants,optional"`
	Credentials string `hcl:"credentials,optional"`
	Transit     string `hcl:"transit,optional"`
}

// Auth is how the broker logs in: "approle", "jwt", "cert" or "token". Secrets stand
// in files alone.
type Auth struct {
	Method string `hcl:"method,label"`
	// Mount of the method. Default: its name.
	Mount string `hcl:"mount,optional"`
	// Role of approle, jwt and cert. Default: <prefix>-broker.
	Role string `hcl:"role,optional"`
	// RoleID, or the file that holds it (approle).
	RoleID     string `hcl:"role_id,optional"`
	RoleIDFile string `hcl:"role_id_file,optional"`
	// SecretIDFile (approle).
	SecretIDFile string `hcl:"secret_id_file,optional"`
	// SecretIDWrapped is where a wrapped secret id is put (approle): the broker opens it
	// once, and keeps what was in it in SecretIDFile.
	SecretIDWrapped string `hcl:"secret_id_wrapped,optional"`
	// File with the JWT (jwt) or the token (token).
	File string `hcl:"file,optional"`
	// CertFile and KeyFile (cert).
	CertFile string `hcl:"cert_file,optional"`
	// IssuerFile with the authority that signs it, and CommonName in it, to which
	// setup binds the role (cert).
	IssuerFile string `hcl:"issuer_file,optional"`
	CommonName string `hcl:"common_name,optional"`
	KeyFile    string `hcl:"key_file,optional"`
	// Audiences, Subject and UserClaim that setup binds the role to (jwt).
	Audiences []string `hcl:"bound_audiences,optional"`
	Subject   string   `hcl:"bound_subject,optional"`
	UserClaim string   `hcl:"user_claim,optional"`
}

// Audit is where the server's audit lines come from: a file of its file device, or a
// unix socket on which the broker listens for its socket device.
type Audit struct {
	File   string `hcl:"file,optional"`
	Socket string `hcl:"socket,optional"`
}

const (
	defaultPoll   = 2 * time.Second
	defaultGrace  = 15 * time.Second
	defaultPeriod = 72 * time.Hour
)

// withDefaults fills what a file left out.
func (c Config) withDefaults(getenv func(string) string) Config {
	or := func(s *string, d ...string) {
		for _, d := range d {
			if *s == "" {
				*s = d
			}
		}
	}
	or(&c.Address, getenv("BAO_ADDR"), getenv("VAULT_ADDR"))
	or(&c.CAFile, getenv("BAO_CACERT"), getenv("VAULT_CACERT"))
	or(&c.Namespace, getenv("BAO_NAMESPACE"), getenv("VAULT_NAMESPACE"))
	or(&c.Prefix, policies.DefaultPrefix)
	or(&c.PollText, defaultPoll.String())
	or(&c.GraceText, defaultGrace.String())
	or(&c.PeriodText, defaultPeriod.String())
	if c.Auth != nil {
		a := *c.Auth
		if a.Method != login.Token {
			or(&a.Mount, a.Method)
			or(&a.Role, c.Prefix+"-broker")
		}
		if a.Method == login.JWT {
			or(&a.UserClaim, "sub")
		}
		c.Auth = &a
	}
	return c
}

// names in the server.
func (c Config) names() policies.Names {
	n := policies.NamesOf(c.Prefix)
	if c.Mounts == nil {
		return n
	}
	for to, from := range map[*string]string{&n.Grants: c.Mounts.Grants, &n.Credentials: c.Mounts.Credentials, &n.Transit: c.Mounts.Transit} {
		if from != "" {
			*to = from
		}
	}
	return n
}

func (c Config) path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.Dir, name)
}

// duration of a text that problems has checked.
func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// Client that the configuration describes.
func (c Config) Client() (*client.Client, error) {
	cfg := client.Config{Address: c.Address, CAFile: c.path(c.CAFile), Namespace: c.Namespace}
	if c.Auth != nil {
		cfg.CertFile, cfg.KeyFile = c.path(c.Auth.CertFile), c.path(c.Auth.KeyFile)
	}
	return client.New(cfg)
}

// auth of the broker's login. The role id is no secret, and may stand in a file.
func (c Config) auth() (login.Auth, error) {
	a := c.Auth
	out := login.Auth{Method: a.Method, Namespace: c.Namespace, Mount: a.Mount, Role: a.Role, RoleID: a.RoleID, File: c.path(a.File)}
	if a.Method == login.AppRole {
		out.File, out.Wrapped = c.path(a.SecretIDFile), c.path(a.SecretIDWrapped)
		if a.RoleIDFile != "" {
			id, err := readLine(c.path(a.RoleIDFile))
			if err != nil {
				return out, protocol.Errorf(protocol.CodeFailedPrecondition, "role_id_file: %w", err)
			}
			out.RoleID = id
		}
	}
	return out, nil
}

// Scope is what broker.hcl lets be reached, in so far as policies are about it.
type Scope struct {
	// Credentials that tools may use under grants, of every tenant.
	Credentials []string
	// Issued are those of Credentials that an engine issues, by name.
	Issued map[string]*issued.From
	// Keys of model routes and registries, of every tenant.
	Keys []string
	// TenantKeys are keys of one tenant that every tenant's requests use.
	TenantKeys []policies.Credential
}

// opened are the credentials that a tenant's grants may reach.
func (s Scope) opened(tenant protocol.TenantID) (out []policies.Opened) {
	for _, name := range s.Credentials {
		if from := s.Issued[name]; from == nil || from.For(tenant) {
			out = append(out, policies.Opened{Credential: policies.Credential{Tenant: tenant, Name: name}, From: from})
		}
	}
	return out
}

// Plan of what the server must have. It reads the issuer of a cert login.
func (c Config) Plan(s Scope) (plan.Plan, error) {
	w := plan.Wanted{Names: c.names(), Period: duration(c.PeriodText), TokensPerSecond: c.TokensPerSecond, Routes: s.TenantKeys}
	w.Login = plan.Login{
		Auth:      login.Auth{Method: c.Auth.Method, Mount: c.Auth.Mount, Role: c.Auth.Role},
		Audiences: c.Auth.Audiences, Subject: c.Auth.Subject, UserClaim: c.Auth.UserClaim,
	}
	if c.Auth.Method == login.Cert {
		pem, err := os.ReadFile(c.path(c.Auth.IssuerFile))
		if err != nil {
			return plan.Plan{}, protocol.Errorf(protocol.CodeFailedPrecondition, "issuer_file: %w", err)
		}
		if err := isAuthority(pem); err != nil {
			return plan.Plan{}, protocol.Errorf(protocol.CodeInvalidArgument, "issuer_file: %s %w", c.path(c.Auth.IssuerFile), err)
		}
		w.Login.Issuer, w.Login.CommonName = string(pem), c.Auth.CommonName
	}
	if c.Namespace != "" {
		w.TokensPerSecond = 0 // limits belong to the root
	}
	for _, name := range slices.Sorted(maps.Keys(s.Issued)) {
		if f := s.Issued[name]; f.Setup {
			w.SSH = append(w.SSH, f)
		}
	}
	for _, t := range c.Tenants {
		tenant := protocol.TenantID(t)
		w.Credentials = append(w.Credentials, s.opened(tenant)...)
		for _, name := range s.Keys {
			w.Routes = append(w.Routes, policies.Credential{Tenant: tenant, Name: name})
		}
	}
	return plan.New(w), nil
}

// Unlimited says why tokens_per_second is in no plan. Empty: it is, or is not asked for.
func (c Config) Unlimited() string {
	if c.Namespace == "" || c.TokensPerSecond <= 0 {
		return ""
	}
	return fmt.Sprintf("tokens_per_second = %d is not made: rate limits are the root namespace's; whoever may write there makes it with: vault write -namespace=root sys/quotas/rate-limit/%s-mint path=%s/auth/token/create rate=%[1]d interval=1s",
		c.TokensPerSecond, c.names().Prefix, strings.Trim(c.Namespace, "/"))
}

// Decode reads the body of a vault block. dir is where relative file names start;
// getenv is the environment. Every problem is in the error, with its place.
func Decode(body hcl.Body, dir string, getenv func(string) string) (Config, error) {
	return decode(body, dir, getenv, false)
}
