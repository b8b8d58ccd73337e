package broker

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/protocol"
)

// CheckFile reads broker.hcl by every rule that a broker has for it when it starts, for
// whoever looks at it from elsewhere. Files of authorities (ca_file) are looked at where
// they are here; those that are not are absent, and are the broker's to find. What stands
// in the blocks vault and consul is for whoever reads them.
func CheckFile(path string) (c Config, absent []string, err error) {
	if c, err = LoadConfig(path); err != nil {
		return c, nil, err
	}
	var problems []error
	for _, a := range c.authorities() {
		switch err := a.check(c); {
		case errors.Is(err, fs.ErrNotExist):
			absent = append(absent, c.Path(a.file))
		case err != nil:
			problems = append(problems, err)
		}
	}
	return c, absent, refusedFile(problems)
}

// authority of a destination, a route or an authorization server, beside the machine's.
type authorityFile struct {
	what, file string
	at         hcl.Range
}

func (c Config) authorities() (all []authorityFile) {
	add := func(what, name, file string, at hcl.Range) {
		if file != "" {
			all = append(all, authorityFile{fmt.Sprintf("%s %q", what, name), file, at})
		}
	}
	for _, m := range c.Models {
		add("model", m.Name, m.CAFile, m.Range)
	}
	for _, d := range c.Destinations {
		add("destination", d.Name, d.CAFile, d.Range)
	}
	for _, o := range c.OAuth2 {
		add("oauth2", o.Name, o.CAFile, o.Range)
	}
	return all
}

func (a authorityFile) check(c Config) error {
	pem, err := os.ReadFile(c.Path(a.file))
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s holds no certificate (PEM)", c.Path(a.file))
	}
	if err != nil {
		return fmt.Errorf("%s: %s: ca_file: %w; it has the certificate of the authority that signs there, and nothing else", place(&a.at, cmp.Or(a.at.Filename, "broker.hcl")), a.what, err)
	}
	return nil
}

// provable refuses a configuration whose authorities cannot be read: all of them at once.
func (c Config) provable() error {
	var problems []error
	for _, a := range c.authorities() {
		problems = append(problems, a.check(c))
	}
	return refusedFile(problems)
}

func refusedFile(problems []error) error {
	if err := errors.Join(problems...); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration is refused:\n%w", err)
	}
	return nil
}
