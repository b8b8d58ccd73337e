package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/cobra"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	hidden "bivouac/server/broker/secret"
)

func (a *app) credentialCommand() *cobra.Command {
	return group(&cobra.Command{Use: "credential", Short: "Keys that the broker injects and nobody else sees"},
		a.credentialSet(), a.credentialList(), a.credentialDelete())
}

func (a *app) credentialSet() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Store a credential where the broker keeps them: its keyring, Vault or OpenBao",
		Long: fmt.Sprintf(`Asks for the value on the terminal, or reads it from --file; never from an argument.
It is sealed here for the broker alone: the server passes on what it cannot read. Where it
may be sent is in the broker's own file. A value has at least %d bytes and at most %d: a
shorter one could not be taken out of what an upstream answers.`, hidden.MinBytes, hidden.MaxBytes),
		Example: "  bivouac credential set openai-key\n  pass show weather | bivouac credential set weather-token --file -",
		Args:    noSecret("a credential's value"),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			value, err := a.readSecret(ctx, file, "--file", "Value of "+args[0]+": ")
			if err != nil {
				return err
			}
			return a.putCredential(ctx, c, args[0], secret(value))
		}),
	}
	cmd.Flags().StringVar(&file, "file", "", "read the value from this file (- is standard input)")
	return cmd
}

func (a *app) putCredential(ctx context.Context, c *client.Client, name string, value secret) error {
	res, err := c.Credentials.GetSealRecipient(ctx, &apiv1.GetSealRecipientRequest{})
	if err != nil {
		return err
	}
	sealed, err := seal(res, a.login.RootFingerprint, name, value)
	if err != nil {
		return err
	}
	put, err := c.Credentials.PutCredential(ctx, &apiv1.PutCredentialRequest{Name: name, Sealed: sealed})
	if err != nil {
		return err
	}
	return a.print(put, func(w io.Writer) { fmt.Fprintf(w, "%s is set\n", name) })
}

// seal encrypts for the broker. The recipient must be signed by the root that
// this login pins: a server that lies about it learns nothing.
func seal(r *apiv1.GetSealRecipientResponse, pinned, name string, value secret) ([]byte, error) {
	root, err := x509.ParseCertificate(r.GetRootCertificate())
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the server sent an unreadable root certificate: %w", err)
	}
	if fp := identity.Fingerprint(root); !strings.EqualFold(fp, pinned) {
		return nil, protocol.Errorf(protocol.CodePermissionDenied,
			"the server now shows the root %s, and your login pins %s: nothing was sent; ask the admin, then %s", fp, pinned, logIn)
	}
	key, ok := root.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the root's key has an unknown type")
	}
	jws, err := jose.ParseSignedCompact(r.GetStatement(), []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the broker's statement cannot be read: %w", err)
	}
	payload, err := jws.Verify(key)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "the recipient is not signed by the root: nothing was sent")
	}
	var said struct {
		Recipient string `json:"recipient"`
	}
	if err := json.Unmarshal(payload, &said); err != nil || said.Recipient == "" || said.Recipient != r.GetRecipient() {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "the recipient is not the one the root signed: nothing was sent")
	}
	to, err := age.ParseX25519Recipient(said.Recipient)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the recipient cannot be read: %w", err)
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(w).Encode(map[string]string{"name": name, "value": value.reveal()}); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (a *app) credentialList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Names and uses; values are never shown", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Credentials.ListCredentials(ctx, &apiv1.ListCredentialsRequest{})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetCredentials()), "no credential yet: bivouac credential set NAME stores one", func(w io.Writer) {
				t := newTable(w, "NAME", "SET", "USED BY")
				for _, cr := range res.GetCredentials() {
					set := "for each action"
					if cr.GetUpdatedAt() != nil {
						set = ago(cr.GetUpdatedAt())
					}
					t.row(cr.GetName(), set, strings.Join(cr.GetUsedBy(), " "))
				}
				t.flush()
			})
		}),
	}
}

func (a *app) credentialDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove a credential from where the broker keeps it",
		Long: `Removes it now: a call that needs it is refused from then on, until it is set again;
bivouac tools effective names the tools. Whoever issued it does not know that; end it
there too.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Credentials.DeleteCredential(ctx, &apiv1.DeleteCredentialRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "%s is gone: tools that need it are refused until it is set again (bivouac tools effective --agent NAME)\n", args[0])
			})
		}),
	}
}
