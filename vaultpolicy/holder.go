package vaultpolicy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/edge/legible"
	"bivouac/edge/shellword"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
)

// Called says with which flags the command line was called, for the commands that it
// names.
func (c Config) Called(flags string) Config {
	c.flags = &flags
	return c
}

// Flags of the commands that are about this configuration.
func (c Config) Flags() string {
	switch {
	case c.flags != nil:
		return *c.flags
	case c.file == "":
		return ""
	}
	path := c.file
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return " --broker-config " + shellword.Quote(path)
}

// Setup is the command of an admin that makes what the server must have.
func (c Config) Setup() string { return "bivouac vault setup --apply" + c.Flags() }

// Whose says whose a token is, as the server says it: its accessor, policies and end. The
// token itself is nowhere in it.
func Whose(data map[string]any) string {
	text := "no policies"
	if held := policiesOf(data); len(held) > 0 {
		text = "policies " + legible.Line(strings.Join(held, ", "))
	}
	if accessor := client.Text(data["accessor"]); accessor != "" { // a batch token has none
		text = "accessor " + legible.Line(accessor) + ", " + text
	}
	if end := client.Text(data["expire_time"]); end != "" {
		text += ", until " + legible.Line(end)
	}
	return text
}

// policiesOf a token: its own, and those of its person.
func policiesOf(data map[string]any) []string {
	return append(client.Texts(data["policies"]), client.Texts(data["identity_policies"])...)
}

// whose login it is that lacks something.
func (f File) whose(own client.Answer) string {
	return fmt.Sprintf("the broker's login (%s, %s)", f.loginWith(), Whose(own.Data))
}

// loginWith says with what the broker logs in.
func (f File) loginWith() string {
	a := f.Auth
	switch a.Method {
	case login.Token:
		return "the token in " + f.path(a.File)
	case login.AppRole:
		return "role " + a.Role + " of auth/" + a.Mount + ", secret id in " + f.path(a.SecretIDFile)
	case login.JWT:
		return "role " + a.Role + " of auth/" + a.Mount + ", JWT in " + f.path(a.File)
	}
	return "role " + a.Role + " of auth/" + a.Mount + ", certificate in " + f.path(a.CertFile)
}

// mendRights of a login: setup where it has the policies, whose rules are not what they
// must be; otherwise a login that has them.
func (f File) mendRights(own client.Answer) string {
	held, n := policiesOf(own.Data), f.names()
	var none []string
	for _, p := range []string{n.BrokerPolicy(), n.RoutesPolicy()} {
		if !slices.Contains(held, p) {
			none = append(none, p)
		}
	}
	switch fetch := f.Fetch(); {
	case len(none) == 0:
		return f.Setup() + "  (as an admin of the server: a policy that the login has lacks the rule, or is not there)"
	case f.Auth.Method == login.Token:
		return f.Setup() + "  (as an admin of the server), then another token, because this one has not the policy " + strings.Join(none, ", ") + ":\n" + fetch
	}
	return f.Setup() + "  (as an admin of the server: the role gives no policy " + strings.Join(none, ", ") + "), then start the broker anew: a login that is there keeps the policies that it has"
}

// sayLoginFailed says with what the broker cannot log in, and what that means.
func (f File) sayLoginFailed(err error) string {
	var denied *login.Denied
	if !errors.As(err, &denied) {
		return err.Error()
	}
	means := "the server takes it no more: it has expired, was revoked when it was rotated, or is another server's"
	switch f.Auth.Method {
	case login.AppRole:
		means = "the server takes one of them no more: the secret id has expired, was used up or destroyed, or the role is not there, or its role id is another"
	case login.JWT, login.Cert:
		means = "the server does not take it: it has expired, or the role is not there, or is bound to another"
	}
	return err.Error() + "\nthis was " + f.loginWith() + ": " + means
}
