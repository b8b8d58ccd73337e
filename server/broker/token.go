package broker

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"bivouac/edge/protocol"
)

// claimedPresenter reads for whom a capability says it was made, before its
// signature is checked. Only a probe needs it: the server asks for others.
func claimedPresenter(token string) (string, error) {
	parts := strings.Split(token, ".")
	var claims struct {
		Presenter string `json:"cnf"`
	}
	if len(parts) == 3 {
		body, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(body, &claims) == nil && claims.Presenter != "" {
			return claims.Presenter, nil
		}
	}
	return "", protocol.Errorf(protocol.CodeInvalidArgument, "the capability cannot be read")
}
