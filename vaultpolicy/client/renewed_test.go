package client

import (
	"testing"
	"time"

	"github.com/hashicorp/vault/api"
)

// A renewal by an accessor answers without the token. Whoever asks for a token gets
// one that can be used, or an error.
func TestLoginWithoutToken(t *testing.T) {
	renewed, err := login(&api.SecretAuth{Accessor: "accessor", LeaseDuration: 60, Renewable: true})
	if err != nil || !renewed.Token.IsZero() || renewed.TTL != time.Minute || !renewed.Renewable {
		t.Errorf("renewed: %+v, %v", renewed, err)
	}
	made, err := login(&api.SecretAuth{ClientToken: "hvs.long-enough", Accessor: "accessor"})
	if err != nil || made.Token.IsZero() {
		t.Errorf("made: %v", err)
	}
	for name, a := range map[string]*api.SecretAuth{"none, of a batch": {LeaseDuration: 60}, "too short": {ClientToken: "hvs", Accessor: "accessor"}} {
		if _, err := login(a); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
