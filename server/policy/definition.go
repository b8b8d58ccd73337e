package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// Definition is a stored version of an agent definition.
type Definition struct {
	Tenant    protocol.TenantID
	Name      string
	Digest    string
	Version   int
	Filename  string
	Source    []byte
	CreatedAt time.Time
	CreatedBy protocol.PrincipalID
}
