package login

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"time"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// Methods of login.
const (
	Token   = "token"
	AppRole = "approle"
	JWT     = "jwt"
	Cert    = "cert"
)

// Auth says how the broker logs in. Secrets stand in files alone.
type Auth struct {
	// Method is "approle", "jwt", "cert" or "token".
	Method string
	// Namespace in which it logs in; empty: the root.
	Namespace string
	// Mount of the method; "token" has none.
	Mount string
	// Role of approle and jwt, or the name of the certificate's role.
	Role string
	// RoleID of approle.
	RoleID string
	// File with the secret id, the JWT, or the token.
	File string
	// Wrapped is where a wrapped secret id may be put (approle): it is opened once, and
	// what was in it is kept in File. Empty: none is looked for.
	Wrapped string
}

// log in once. Files are read now: whoever rotates them writes the new one first.
func (a Auth) login(ctx context.Context, c *client.Client) (client.Login, error) {
	path := "auth/" + a.Mount + "/login"
	switch a.Method {
	case Token:
		return a.present(ctx, c)
	case AppRole:
		id, err := readSecret(a.File)
		if err != nil {
			return client.Login{}, err
		}
		return ask(ctx, c, path, map[string]any{"role_id": a.RoleID, "secret_id": id.Reveal()})
	case JWT:
		jwt, err := readSecret(a.File)
		if err != nil {
			return client.Login{}, err
		}
		return ask(ctx, c, path, map[string]any{"role": a.Role, "jwt": jwt.Reveal()})
	case Cert:
		return ask(ctx, c, path, map[string]any{"name": a.Role})
	}
	return client.Login{}, protocol.Errorf(protocol.CodeInvalidArgument, "auth %q is not known: use approle, jwt, cert or token", a.Method)
}

func ask(ctx context.Context, c *client.Client, path string, body map[string]any) (client.Login, error) {
	a, err := c.Write(ctx, secret.Value{}, path, body)
	if err != nil {
		return client.Login{}, err
	}
	if a.Login.Token.IsZero() {
		return client.Login{}, protocol.Errorf(protocol.CodeInternal, "the login at %s has no token in its answer", path)
	}
	return a.Login, refuseRoot(a.Login)
}

// present takes a token that somebody else made and keeps.
func (a Auth) present(ctx context.Context, c *client.Client) (client.Login, error) {
	token, err := readSecret(a.File)
	if err != nil {
		return client.Login{}, err
	}
	l, err := lookupSelf(ctx, c, token)
	if err != nil {
		return client.Login{}, err
	}
	return l, refuseRoot(l)
}

// refuseRoot keeps the broker from holding more than it needs.
func refuseRoot(l client.Login) error {
	if slices.Contains(l.Policies, "root") {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the broker's login is a root token: it can do everything, which a broker must not; make it a login of its own with: bivouac vault setup")
	}
	return nil
}

const selfPath = "auth/token/lookup-self"

// lookupSelf asks the server what a token is. An answer that is not about this token
// is none.
func lookupSelf(ctx context.Context, c *client.Client, token secret.Value) (client.Login, error) {
	a, err := c.Read(ctx, token, selfPath)
	if err != nil {
		return client.Login{}, err
	}
	// A batch token has no accessor, and is its own id.
	if client.Text(a.Data["accessor"]) == "" && !token.Equal(client.Text(a.Data["id"])) {
		return client.Login{}, c.Strange("read", selfPath)
	}
	ttl := client.Seconds(a.Data["ttl"])
	if ttl == 0 && a.Data["expire_time"] != nil {
		ttl = time.Second // its last one; zero is a token that never ends
	}
	return client.Login{
		Token: token, Accessor: client.Text(a.Data["accessor"]), Policies: client.Texts(a.Data["policies"]),
		TTL: ttl, Renewable: client.Flag(a.Data["renewable"]),
	}, nil
}

const maxFile = 64 << 10

// readSecret reads a file that holds one secret, perhaps with a line end.
func readSecret(path string) (secret.Value, error) {
	if err := filemode.Secret(path); err != nil {
		return secret.Value{}, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the broker cannot log in: %w", err)
	}
	defer clear(b)
	if len(b) > maxFile {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the broker cannot log in: %s is larger than any secret", path)
	}
	v, err := secret.New(bareSecret(b))
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the broker cannot log in with %s: %w", path, err)
	}
	return v, nil
}

// bareSecret is the text without line ends; of what `-format=json` writes, the
// secret id or the token.
func bareSecret(b []byte) string {
	text := strings.TrimSpace(string(b))
	if !strings.HasPrefix(text, "{") {
		return text
	}
	var said struct {
		Data struct {
			SecretID string `json:"secret_id"`
		} `json:"data"`
		Auth struct {
			Token string `json:"client_token"`
		} `json:"auth"`
	}
	if json.Unmarshal([]byte(text), &said) != nil {
		return text
	}
	if said.Data.SecretID != "" {
		return said.Data.SecretID
	}
	return said.Auth.Token
}
