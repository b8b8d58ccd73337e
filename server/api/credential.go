package api

import (
	"context"
	"regexp"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// maxSealed bounds the ciphertext of one credential.
const maxSealed = 64 << 10

var credentialName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// credentials relays ciphertext: this server holds no key that opens it. INV-17.
type credentials struct{ Config }

func (s credentials) GetSealRecipient(ctx context.Context, _ *apiv1.GetSealRecipientRequest) (*apiv1.GetSealRecipientResponse, error) {
	d, err := s.Broker.Describe(ctx)
	if err != nil {
		return nil, err
	}
	return &apiv1.GetSealRecipientResponse{
		Recipient: d.GetSealRecipient(), Statement: d.GetSealStatement(), RootCertificate: d.GetRootCertificate(),
	}, nil
}

func (s credentials) PutCredential(ctx context.Context, r *apiv1.PutCredentialRequest) (*apiv1.PutCredentialResponse, error) {
	if err := requireAdmin(ctx, "set credentials"); err != nil {
		return nil, err
	}
	if err := checkCredentialName(r.GetName()); err != nil {
		return nil, err
	}
	if n := len(r.GetSealed()); n == 0 || n > maxSealed {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument,
			"a sealed credential has 1 to %d bytes, this one has %d: set it with bivouac credential set", maxSealed, n)
	}
	return &apiv1.PutCredentialResponse{}, s.Broker.PutCredential(ctx, loginOf(ctx).tenant.ID, r.GetName(), r.GetSealed())
}

func (s credentials) ListCredentials(ctx context.Context, _ *apiv1.ListCredentialsRequest) (*apiv1.ListCredentialsResponse, error) {
	list, err := s.Broker.Credentials(ctx, loginOf(ctx).tenant.ID)
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListCredentialsResponse{}
	for _, c := range list {
		row := &apiv1.Credential{Name: c.GetName(), UsedBy: c.GetUsedBy()}
		if c.GetUpdatedUs() != 0 { // else it is issued for each action
			row.UpdatedAt = at(time.UnixMicro(c.GetUpdatedUs()))
		}
		out.Credentials = append(out.Credentials, row)
	}
	return out, nil
}

func (s credentials) DeleteCredential(ctx context.Context, r *apiv1.DeleteCredentialRequest) (*apiv1.DeleteCredentialResponse, error) {
	if err := requireAdmin(ctx, "delete credentials"); err != nil {
		return nil, err
	}
	if err := checkCredentialName(r.GetName()); err != nil {
		return nil, err
	}
	return &apiv1.DeleteCredentialResponse{}, s.Broker.DeleteCredential(ctx, loginOf(ctx).tenant.ID, r.GetName())
}

func checkCredentialName(name string) error {
	if credentialName.MatchString(name) {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument,
		"a credential's name has 1 to 63 lower-case letters, digits, dots, underscores and hyphens, and begins with a letter or digit")
}
