package oauth

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/secret"
)

// ask is one request. Each form is fixed by the file: trying one after the other would
// send a refresh token twice, which servers take for a theft.
func (c Config) ask(ctx context.Context, client, with secret.Value) (*oauth2.Token, error) {
	style := oauth2.AuthStyleInHeader
	if c.InBody || client.IsZero() {
		style = oauth2.AuthStyleInParams
	}
	if c.Grant == ClientCredentials {
		cfg := clientcredentials.Config{ClientID: c.ClientID, ClientSecret: client.Reveal(), TokenURL: c.TokenURL, Scopes: c.Scopes, AuthStyle: style}
		if c.Audience != "" {
			cfg.EndpointParams = url.Values{"audience": {c.Audience}}
		}
		return cfg.Token(ctx)
	}
	cfg := oauth2.Config{ClientID: c.ClientID, ClientSecret: client.Reveal(), Endpoint: oauth2.Endpoint{TokenURL: c.TokenURL, AuthStyle: style}}
	return cfg.TokenSource(ctx, &oauth2.Token{RefreshToken: with.Reveal()}).Token()
}

// read what came. Lives of more than a day are cut: a token is asked for again then.
func (c Config) read(tok *oauth2.Token) (g grantOf, err error) {
	if kind := tok.Type(); !strings.EqualFold(kind, "Bearer") {
		return g, protocol.Errorf(protocol.CodeFailedPrecondition, "the authorization server of credential %q gives tokens that are no bearer tokens: they are not used", c.Name)
	}
	if g.token, err = secret.New(tok.AccessToken); err != nil {
		return g, protocol.Errorf(protocol.CodeFailedPrecondition, "the authorization server of credential %q gives a token that cannot be used: it is too short to be kept out of answers, too long, or cannot stand in a header", c.Name)
	}
	if tok.RefreshToken != "" {
		if g.next, err = secret.New(tok.RefreshToken); err != nil {
			return g, protocol.Errorf(protocol.CodeFailedPrecondition, "the authorization server of credential %q gives a refresh token that cannot be stored; authorise anew, and: bivouac credential set %s", c.Name, c.Name)
		}
	}
	g.life = unsaid
	if n := expiresIn(tok); n > 0 {
		g.life = time.Duration(min(n, 24*3600)) * time.Second
	}
	return g, nil
}

// expiresIn is what the answer says in seconds; 0: nothing. Of client credentials the
// library keeps only the instant that it made of it.
func expiresIn(tok *oauth2.Token) int64 {
	if tok.ExpiresIn != 0 || tok.Expiry.IsZero() {
		return tok.ExpiresIn
	}
	return int64(time.Until(tok.Expiry).Round(time.Second) / time.Second)
}

// ended are the codes (RFC 6749, 5.2) after which only a person helps, and what for.
var ended = map[string]string{
	"invalid_grant":          "does not take what is stored any more: it was revoked, used up, or has expired",
	"invalid_client":         "does not know the client, or refuses its secret",
	"unauthorized_client":    "does not let the client use this grant",
	"unsupported_grant_type": "does not know this grant",
	"invalid_scope":          "refuses the scopes",
	"invalid_request":        "does not understand the request",
	"access_denied":          "denies the access",
}

// failed names what went wrong in our own words: what a server says may be anything,
// and a library repeats it. INV-17.
func (c Config) failed(err error) error {
	var refused *egress.Refused
	var said *oauth2.RetrieveError
	whose := "the authorization server of credential " + strconv.Quote(c.Name)
	switch {
	case errors.As(err, &refused):
		return refused.Err
	case !errors.As(err, &said):
		if errors.Is(err, context.DeadlineExceeded) {
			return protocol.Errorf(protocol.CodeUnavailable, "%s did not answer within %s", whose, requestTimeout)
		}
		return protocol.Errorf(protocol.CodeUnavailable, "%s cannot be reached, or does not answer as RFC 6749 says", whose)
	}
	status := 0
	if said.Response != nil {
		status = said.Response.StatusCode
	}
	why, known := ended[said.ErrorCode]
	switch {
	case status == http.StatusTooManyRequests || status >= 500 || said.ErrorCode == "temporarily_unavailable" || said.ErrorCode == "server_error":
		return protocol.Errorf(protocol.CodeUnavailable, "%s answered with HTTP %d: try again later", whose, status)
	case !known:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s answered with HTTP %d and no reason that is known: see its token_url in broker.hcl", whose, status)
	}
	e := protocol.Errorf(protocol.CodeFailedPrecondition, "%s %s (%s); %s", whose, why, said.ErrorCode, c.mend(said.ErrorCode))
	e.Detail = protocol.DetailCredentialRefused
	return e
}

// mend is the command that helps.
func (c Config) mend(code string) string {
	set := "bivouac credential set "
	switch {
	case code == "invalid_grant" && c.Grant == RefreshToken:
		return "authorise it anew at the provider, and store the new refresh token with: " + set + c.Name
	case slices.Contains([]string{"invalid_client", "unauthorized_client"}, code):
		name := c.Secret
		if c.Grant == ClientCredentials {
			name = c.Name
		}
		if name == "" {
			return "see client_id of oauth2 " + strconv.Quote(c.Name) + " in broker.hcl"
		}
		return "see client_id of oauth2 " + strconv.Quote(c.Name) + " in broker.hcl, or store another secret with: " + set + name
	}
	return "see oauth2 " + strconv.Quote(c.Name) + " in broker.hcl"
}
