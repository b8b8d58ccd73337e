package workload

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
)

// MaxToken bounds what is looked at.
const MaxToken = 16 << 10

// algorithms that Nomad signs with: RS256 by keys of today, EdDSA by older ones.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.EdDSA}

// Judge says whose machine an identity stands for.
type Judge struct {
	keys  *Keys
	rules []Rule
}

// NewJudge asks nobody.
func NewJudge(keys *Keys, rules []Rule) *Judge { return &Judge{keys: keys, rules: rules} }

// Judge one identity. The token is in no error; one of what Nomad has signed is a Refused.
func (j *Judge) Judge(ctx context.Context, token string) (Rule, Identity, error) {
	c, err := j.verified(ctx, strings.TrimSpace(token))
	if err != nil {
		return Rule{}, Identity{}, err
	}
	if err := c.inForce(time.Now()); err != nil {
		return Rule{}, Identity{}, j.refuse(ClassTimes, c, err)
	}
	id, err := c.identity()
	if err != nil {
		return Rule{}, Identity{}, j.refuse(ClassClaims, c, err)
	}
	r, err := match(j.rules, c, id)
	if err != nil {
		return Rule{}, id, j.refuse(ClassRule, c, err)
	}
	return r, id, nil
}

// verified are the claims of a token that a key of Nomad signed.
func (j *Judge) verified(ctx context.Context, token string) (c claims, err error) {
	if len(token) > MaxToken {
		return c, malformed("it is larger than %d bytes", MaxToken)
	}
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return c, malformed("%w; it is the file that Nomad writes for the task's identity block, nomad_<name>.jwt", plainly(err))
	}
	header := jws.Signatures[0].Header
	if header.KeyID == "" {
		return c, malformed("it names no key")
	}
	key, err := j.keys.Find(ctx, header.KeyID)
	if err != nil {
		return c, err
	}
	payload, err := jws.Verify(key)
	if err != nil {
		return c, refused("its signature is not by Nomad's key %q", header.KeyID)
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return c, malformed("its claims cannot be read")
	}
	return c, nil
}

// plainly is an error of the parser without what it quotes: that is a secret's.
func plainly(err error) error {
	if strings.Contains(err.Error(), "algorithm") {
		return errAlgorithm
	}
	return errNotCompact
}

func malformed(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "the workload identity cannot be read: "+format, args...)
}
