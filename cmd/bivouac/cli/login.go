package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// secret is text that prints REDACTED.
type secret string

func (secret) String() string   { return "REDACTED" }
func (secret) GoString() string { return "REDACTED" }

// reveal is the one way out, easy to find.
func (s secret) reveal() string { return string(s) }

// login is who the person is, at which server, and which root it pins.
type login struct {
	Server          string
	Token           secret
	RootFingerprint string
	// CA holds PEM certificates beside the system's that may sign the server's; usually empty.
	CA string
}

const loginFile = "login.json"

func defaultConfigDir() string {
	if d := os.Getenv("BIVOUAC_CONFIG"); d != "" {
		return d
	}
	if d, err := os.UserConfigDir(); err == nil {
		return filepath.Join(d, "bivouac")
	}
	return ".bivouac"
}

type loginJSON struct {
	Server          string `json:"server"`
	Token           string `json:"token"`
	RootFingerprint string `json:"root_fingerprint"`
	CA              string `json:"ca,omitempty"`
}

func readLogin(dir string) (login, error) {
	path := filepath.Join(dir, loginFile)
	if err := filemode.Secret(path); errors.Is(err, fs.ErrPermission) {
		return login{}, foreignLogin(path, err)
	} else if err != nil {
		return login{}, protocol.Errorf(protocol.CodeFailedPrecondition, "your token is in a file that is not yours alone: %w", err)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return login{}, protocol.Errorf(protocol.CodeUnauthenticated,
			"you are not logged in (no %s): run bivouac dev for a server of your own, or %s", path, logIn)
	}
	if errors.Is(err, fs.ErrPermission) {
		return login{}, foreignLogin(path, err)
	}
	if err != nil {
		return login{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the login cannot be read: %w", err)
	}
	var j loginJSON
	if err := json.Unmarshal(b, &j); err != nil || j.Server == "" {
		return login{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%w: %s is readable, and no login: run %s again, which writes it anew", errDamaged, path, logIn)
	}
	return login{Server: j.Server, Token: secret(j.Token), RootFingerprint: j.RootFingerprint, CA: j.CA}, nil
}

// errDamaged is a login whose file can be read, so that no change of its mode helps.
var errDamaged = errors.New("the login is damaged")

// foreignLogin is one that another user keeps.
func foreignLogin(path string, err error) error {
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the login cannot be read: %w; it is another user's: run this as that one (ls -l %s says who), or log in as yourself: `BIVOUAC_CONFIG=$HOME/.config/bivouac bivouac login URL --token-file FILE`, and that variable before each command", err, path)
}

// writeLogin replaces the login in one step.
func writeLogin(dir string, l login) error {
	b, err := json.MarshalIndent(loginJSON{l.Server, l.Token.reveal(), l.RootFingerprint, l.CA}, "", "  ")
	if err != nil {
		return err
	}
	return writePrivate(filepath.Join(dir, loginFile), append(b, '\n'))
}

// writePrivate writes a 0600 file in a 0700 directory by rename.
func writePrivate(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be made: %w; make it yourself, writable for you alone (0700)", filepath.Dir(path), err)
	}
	if err := durable.Replace(path, b, 0o600); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be written: %w; make room, or make its folder yours with chown, and chmod 700", path, err)
	}
	return nil
}

// reserve makes an empty 0600 file where nothing was, for what can be had once.
func reserve(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return protocol.Errorf(protocol.CodeAlreadyExists, "%s exists already, and may hold something that you need: name another file", path)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be written: %w; name another file", path, err)
	}
	return f.Close()
}

// client of the login's server.
func (l login) client(lost func(error)) (*client.Client, error) {
	return client.New(client.Config{URL: l.Server, Token: l.Token.reveal(), LostFunc: lost, TLS: l.trust()})
}

// trust in the authority that the login names, beside the system's; nil: those alone.
func (l login) trust() *tls.Config {
	if l.CA == "" {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM([]byte(l.CA))
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

// readCA reads the file of an authority; without a file there is none.
func readCA(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "--ca %s cannot be read: %w; give the PEM file of the authority that signed the certificate of the API, such as the api.crt that bivouac-server has as --tls-cert", file, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(b) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "--ca %s has no certificate: give the PEM file of the authority, with -----BEGIN CERTIFICATE----- in it", file)
	}
	return string(b), nil
}

func (a *app) loginCommand() *cobra.Command {
	var tokenFile, fingerprint, ca string
	cmd := &cobra.Command{
		Use:   "login URL",
		Short: "Keep your token for a server",
		Long: `Asks for the token on the terminal, or reads it from --token-file; never from an
argument. The token is tried before it is kept. The server's root key is pinned:
give --fingerprint to compare it with what an admin told you. Where the certificate of
its API comes from an authority of your own, --ca names that one's file; it is kept with
the login, for all later commands.`,
		Example: "  bivouac login https://bivouac.example.org:7400 --token-file token --fingerprint 8bc0…",
		Args:    noSecret("a token"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l := login{Server: strings.TrimRight(args[0], "/")}
			var err error
			if l.CA, err = readCA(ca); err != nil {
				return err
			}
			token, err := a.readSecret(cmd.Context(), tokenFile, "--token-file", "Token: ")
			if err != nil {
				return err
			}
			l.Token = secret(token)
			c, err := l.client(nil)
			if err != nil {
				return err
			}
			defer c.Close()
			who, err := c.Principals.WhoAmI(cmd.Context(), &apiv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			l.RootFingerprint = who.GetRootFingerprint()
			if fingerprint != "" && !strings.EqualFold(fingerprint, l.RootFingerprint) {
				return protocol.Errorf(protocol.CodePermissionDenied,
					"the server's root has the fingerprint %s, not the one you gave: ask the admin; nothing was kept", l.RootFingerprint)
			}
			if err := writeLogin(a.config, l); err != nil {
				return err
			}
			return a.print(who, func(w io.Writer) {
				fmt.Fprintf(w, "logged in at %s as %s of %s\nroot fingerprint %s\n",
					l.Server, who.GetPrincipal().GetName(), who.GetPrincipal().GetTenantName(), l.RootFingerprint)
			})
		},
	}
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "read the token from this file (- is standard input)")
	cmd.Flags().StringVar(&ca, "ca", "", "PEM file of an authority that signed the certificate of the API, beside the system's")
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "root fingerprint that the server must have")
	return cmd
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Who you are at which server",
		Args:  cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			who, err := c.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			return a.print(who, func(w io.Writer) {
				p := who.GetPrincipal()
				role := p.GetKind()
				if p.GetAdmin() {
					role += ", admin"
				}
				fmt.Fprintf(w, "%s of %s (%s), %s\nserver %s, version %s\n", p.GetName(), p.GetTenantName(), role, p.GetId(), a.login.Server, who.GetServerVersion())
			})
		}),
	}
}

// readSecret reads one line from a file, or from the terminal without echo.
// flag is the one that names the file.
func (a *app) readSecret(ctx context.Context, file, flag, prompt string) (string, error) {
	switch {
	case file == "-":
		return oneLine(a.in)
	case file != "":
		var b []byte
		f, err := os.Open(file)
		if err == nil {
			defer f.Close()
			b, err = io.ReadAll(io.LimitReader(f, 64<<10))
		}
		if err != nil {
			return "", protocol.Errorf(protocol.CodeInvalidArgument, "%s %s cannot be read: %w; name the file that holds it, in one line, as a user who may read it (- is standard input)", flag, file, err)
		}
		return oneLine(bytes.NewReader(b))
	}
	fd, ok := a.in.terminal()
	if !ok {
		return "", protocol.Errorf(protocol.CodeInvalidArgument,
			"there is no terminal to ask on: give the secret in a file with %s FILE, where - is standard input", flag)
	}
	fmt.Fprint(a.err, prompt)
	text, err := a.in.password(ctx, fd)
	fmt.Fprintln(a.err)
	if err != nil {
		return "", err
	}
	return oneLine(strings.NewReader(text))
}

// oneLine reads a secret whole and refuses what it could only keep a part of.
func oneLine(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	switch {
	case text == "":
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the secret is empty")
	case strings.ContainsAny(text, "\r\n"):
		return "", protocol.Errorf(protocol.CodeInvalidArgument,
			"the secret has %d lines, and it must be one: it travels in a header; nothing was kept", strings.Count(text, "\n")+1)
	}
	return text, nil
}
