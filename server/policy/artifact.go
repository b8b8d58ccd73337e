package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// What an artifact is.
const (
	ArtifactWorkspace = "workspace" // a person's files, uploaded for a turn
	ArtifactPatch     = "patch"     // what a turn on a machine changed
)

// Artifact is a blob that a session, turn or principal may read. The bytes live
// outside the database under the digest.
type Artifact struct {
	Digest    string
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	Session   protocol.SessionID // zero: uploaded, not yet used
	Turn      protocol.TurnID
	Kind      string // ArtifactWorkspace or ArtifactPatch
	Size      int64
	CreatedAt time.Time
}
