//go:build linux

package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"bivouac/server/api/apiv1"
	"bivouac/test/process"
)

// Vault is a server of Vault or OpenBao that an admin sets up for the stack, as the
// operator's guide says.
type Vault struct {
	Address, CAFile string
	// Token of the admin.
	Token string
	// AuditFile wakes the broker; empty: it polls alone.
	AuditFile string
	// Command of the server's own command line, without an address; Home is the
	// admin's home directory.
	Command func(args ...string) *exec.Cmd
	Home    string
	// Blocks of broker.hcl that need the server, such as destinations whose credentials
	// its engines issue, and the names of those that every agent may reach. Stored are
	// the credentials in them that people keep, with their values.
	Blocks  string
	Reached []string
	Stored  map[string]string
}

// addBlock adds the vault block to broker.hcl.
func (v *Vault) addBlock(file, tenant string) error {
	more := ""
	if v.AuditFile != "" {
		more += fmt.Sprintf("  audit {\n    file = %q\n  }\n", v.AuditFile)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, `
vault {
  address           = %q
  ca_file           = %q
  tenants           = [%q]
  tokens_per_second = -1
%s  auth "approle" {
    role_id_file   = "role-id"
    secret_id_file = "secret-id"
  }
}
%s`, v.Address, v.CAFile, tenant, more, v.Blocks)
	return errors.Join(err, f.Close())
}

// Admin runs one command of the server's own command line with the admin's token,
// and returns what it printed.
func (v *Vault) Admin(ctx context.Context, args ...string) (string, error) {
	cmd := v.Command(args...)
	cmd.Env = append(cmd.Env, "VAULT_ADDR="+v.Address, "VAULT_CACERT="+v.CAFile, "VAULT_TOKEN="+v.Token, "HOME="+v.Home)
	out, err := process.Output(ctx, cmd)
	return strings.TrimSpace(out), err
}

// moveToVault does what the guide says with a deployment that runs: the block, setup,
// the two files that the broker logs in with, and a restart of the broker.
func (s *Stack) moveToVault(ctx context.Context) error {
	v := s.cfg.Vault
	if v == nil {
		return nil
	}
	who, err := s.API.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	if err := v.addBlock(s.Path("broker", "broker.hcl"), who.GetPrincipal().GetTenantId()); err != nil {
		return err
	}
	token := filepath.Join(s.Home, ".vault-token")
	if err := os.WriteFile(token, []byte(v.Token), 0o600); err != nil {
		return err
	}
	_, err = s.CLI(ctx, s.Home, "vault", "setup", "--apply", "--broker-config", s.Path("broker", "broker.hcl"))
	if err = errors.Join(err, os.Remove(token)); err != nil {
		return err
	}
	const role = "auth/approle/role/bivouac-broker/"
	for name, args := range map[string][]string{
		"role-id":   {"read", "-field=role_id", role + "role-id"},
		"secret-id": {"write", "-force", "-field=secret_id", role + "secret-id"},
	} {
		out, err := v.Admin(ctx, args...)
		if err == nil {
			err = os.WriteFile(s.Path("broker", name), []byte(out+"\n"), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return s.restartBroker(ctx)
}

// restartBroker ends it and waits until another start of it answers.
func (s *Stack) restartBroker(ctx context.Context) error {
	if err := s.Broker.End(); err != nil {
		return err
	}
	if err := s.Broker.Start(); err != nil {
		return err
	}
	return s.until(ctx, "the broker is back", s.Broker, func(ctx context.Context) error {
		_, err := s.API.Credentials.GetSealRecipient(ctx, &apiv1.GetSealRecipientRequest{})
		return err
	})
}
