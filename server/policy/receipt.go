package policy

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// Left says what the receipt of a grant's end does not show as gone, layer by layer with
// its reason; empty: it shows all of them gone. What cannot be read shows nothing.
func (g Grant) Left() string {
	if g.Receipt == "" {
		return "the broker has signed no receipt of it yet"
	}
	const unread = "its receipt cannot be read"
	parts := strings.Split(g.Receipt, ".")
	if len(parts) != 3 {
		return unread
	}
	var signed struct {
		Layers []struct {
			Name, Detail string
			Gone         bool
		}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &signed) != nil || len(signed.Layers) == 0 {
		return unread
	}
	var left []string
	for _, l := range signed.Layers {
		if !l.Gone {
			left = append(left, l.Name+": "+l.Detail)
		}
	}
	return strings.Join(left, "; ")
}

// Pending says what no receipt of a revoked grant shows as gone; empty: every layer is
// seen to be clear, in the first receipt or in the later one, or the grant is in force.
func (g Grant) Pending() string {
	if g.RevokedAt.IsZero() || g.Proof != "" {
		return ""
	}
	return g.Left()
}
