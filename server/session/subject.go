package session

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
)

// Subject is everything that an approval binds. A change of any part is another
// subject, and needs another approval. INV-6.
type Subject struct {
	Principal protocol.PrincipalID
	Tool      string
	// Destination is the broker's destination, or the runner's id.
	Destination string
	// ArgumentsDigest is over the canonical arguments (RFC 8785).
	ArgumentsDigest string
	DataBoundary    string
	PolicyDigest    string
	// PreImageDigest of files.write: the file as it is now; empty: absent.
	PreImageDigest string
	ExpiresAt      time.Time
}

// Digest is the SHA-256 of the subject's canonical JSON.
func (s Subject) Digest() string {
	b, err := canonical.Marshal(map[string]string{
		"arguments":     s.ArgumentsDigest,
		"data_boundary": s.DataBoundary,
		"destination":   s.Destination,
		"expires_at":    s.ExpiresAt.UTC().Format(expiryLayout),
		"policy":        s.PolicyDigest,
		"pre_image":     s.PreImageDigest,
		"principal":     s.Principal.String(),
		"tool":          s.Tool,
	})
	if err != nil {
		// A map of strings always marshals; text that is not UTF-8 is replaced by
		// encoding/json before it is checked.
		panic("session: subject does not marshal: " + err.Error())
	}
	return canonical.Digest(b)
}

// expiryLayout has the store's precision, so that a subject read back has the
// digest of the one written.
const expiryLayout = "2006-01-02T15:04:05.000000Z"

// Subject of an action as it stands, under a policy and until an expiry.
func (a Action) Subject(dataBoundary, policyDigest string, expiresAt time.Time) Subject {
	return Subject{
		Principal: a.Principal, Tool: a.Tool, Destination: a.Destination,
		ArgumentsDigest: a.ArgumentsDigest, DataBoundary: dataBoundary, PolicyDigest: policyDigest,
		PreImageDigest: a.PreImageDigest, ExpiresAt: expiresAt,
	}
}
