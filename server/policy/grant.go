package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// Grant is the renewable authority of a principal to an agent. Sealed is
// ciphertext that only the broker opens.
type Grant struct {
	ID          protocol.GrantID
	Tenant      protocol.TenantID
	Principal   protocol.PrincipalID
	Agent       string
	Credentials []string
	Sealed      []byte
	CreatedAt   time.Time
	RevokedAt   time.Time
	RevokedWhy  string // as whoever revoked it said
	// Receipt is the broker's first signature over what ended with it: JWS, compact.
	Receipt string
	// Proof is a later one, kept at ProvenAt, which shows as gone what the first did not;
	// empty: there was nothing left, or it is not seen to be gone yet.
	Proof    string
	ProvenAt time.Time
	// Rotation names the renewal of Sealed that is under way, and RotationAt when it
	// began; empty: none is.
	Rotation   protocol.CleanupID
	RotationAt time.Time
	// RotatedAt is when Sealed was renewed last, and RotationReceipt the broker's
	// signature over that.
	RotatedAt       time.Time
	RotationReceipt string
}
