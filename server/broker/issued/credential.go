package issued

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/http/httpguts"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Credential of one action.
type Credential struct {
	// Value that one header carries. Of a user and password it is the two as Basic has
	// them (RFC 7617).
	Value secret.Value
	// User and Password of a database. The user's name is no secret.
	User     string
	Password secret.Value
	// Certificate of a client, with its key.
	Certificate *tls.Certificate
	// Signer signs in to a host of SSH, with a certificate.
	Signer ssh.Signer
	// SignFunc signs with a key that stays where it is.
	SignFunc func(ctx context.Context, text []byte) (signature []byte, err error)
	// ReturnFunc gives it back to who issued it; nil: it ends by itself.
	ReturnFunc func(ctx context.Context)
}

// Stored is a credential that is kept, and not issued.
func Stored(v secret.Value) Credential { return Credential{Value: v} }

// Login makes the credential of a user and a password.
func Login(user, password string) (c Credential, err error) {
	c.User = user
	if user == "" || strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r == ':' || r == 0x7f }) { // RFC 7617, 2
		return Credential{}, protocol.Errorf(protocol.CodeInvalidArgument, "the user's name is empty, or has a colon, space or control character in it: Basic cannot carry it")
	}
	if c.Password, err = secret.New(password); err != nil {
		return Credential{}, err
	}
	c.Value, err = secret.New(base64.StdEncoding.EncodeToString([]byte(user + ":" + password)))
	return c, err
}

// IsZero reports that there is none.
func (c Credential) IsZero() bool {
	return c.Value.IsZero() && c.Certificate == nil && c.Signer == nil && c.SignFunc == nil
}

// Return gives it back, now that the action is over.
func (c Credential) Return(ctx context.Context) {
	if c.ReturnFunc != nil {
		c.ReturnFunc(ctx)
	}
}

// Hidden is everything of it that must not come back in an answer. INV-17.
func (c Credential) Hidden() []secret.Value {
	return slices.DeleteFunc([]secret.Value{c.Value, c.Password}, secret.Value.IsZero)
}

// Binding of what travels as one value: a user and password, as Basic (RFC 7617).
// Everything else has none: Put puts it into requests.
func (f *From) Binding() (b secret.Binding, ok bool) {
	if f.Engine != Database || f.UsernameHeader != "" {
		return b, false
	}
	return secret.Binding{Header: "Authorization", Format: "Basic {value}"}, true
}

// Put makes a request one that carries what was issued. What cannot be put there fails
// closed: the request must not be sent.
func (f *From) Put(ctx context.Context, r *http.Request, c Credential, whose string) error {
	missing := protocol.Errorf(protocol.CodePolicyDenied, "the credential of %s is not what its %s issues: nothing was sent", whose, f.Engine)
	switch f.Engine {
	case SSH: // no request of HTTP carries one
		return missing
	case PKI: // it is in the connection
		if c.Certificate == nil {
			return missing
		}
		return nil
	case Transit:
		if c.SignFunc == nil {
			return missing
		}
		return f.sign(ctx, r, c, time.Now())
	}
	if c.User == "" || c.Password.IsZero() || f.UsernameHeader == "" {
		return missing
	}
	if !httpguts.ValidHeaderFieldValue(c.User) || !httpguts.ValidHeaderFieldValue(c.Password.Reveal()) {
		return protocol.Errorf(protocol.CodePolicyDenied, "the credential of %s cannot stand in a header: nothing was sent", whose)
	}
	r.Header.Set(f.UsernameHeader, c.User)
	r.Header.Set(f.PasswordHeader, c.Password.Reveal())
	return nil
}
