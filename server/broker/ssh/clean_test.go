package ssh

import (
	"strings"
	"testing"

	"bivouac/server/broker/secret"
)

// INV-17: what a command writes shows no value, nor the beginning of one where it was cut,
// in whatever escapes.
func TestOutputIsClean(t *testing.T) {
	v, err := secret.New("c2VjcmV0+value/of+the+broker==")
	if err != nil {
		t.Fatal(err)
	}
	written := strings.ReplaceAll(v.Reveal(), "+", `\u002B`)
	whole := []byte(`a 5" disk: ` + written)
	for name, tc := range map[string]struct {
		text text
		want string
	}{
		"whole":    {text{kept: whole, bytes: int64(len(whole))}, `a 5" disk: ` + secret.Mark},
		"cut":      {text{kept: whole[:len(whole)-9], bytes: int64(len(whole))}, `a 5" disk: `},
		"harmless": {text{kept: []byte(`C:\new\u0041 50%`), bytes: 16}, `C:\new\u0041 50%`},
	} {
		if got, _ := tc.text.clean(secret.NewRedactor(v), 1000); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
