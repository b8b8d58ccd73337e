package authority

import (
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Leaf is what a certificate below the root is asked for.
type Leaf struct {
	Role   identity.Role
	ID     string
	Tenant protocol.TenantID
	SPKI   []byte // DER, SubjectPublicKeyInfo; Ed25519
	// Names are host names and addresses, for servers.
	Names []string
}
