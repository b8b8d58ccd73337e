package issued

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

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
func (c Credential) IsZero() bool { return c.Value.IsZero() }

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

// Binding of what its engine issues: a user and password travel as Basic (RFC 7617).
func (f *From) Binding() secret.Binding {
	return secret.Binding{Header: "Authorization", Format: "Basic {value}"}
}
