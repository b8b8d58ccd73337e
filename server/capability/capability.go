// Package capability is the signed, minutes-long authority of one turn or one
// action: its claims, signing by a server's hourly key and verification by a
// broker. The edge carries it as opaque text; a sandbox never sees it (INV-12).
//
// It guarantees that a token verifies only under a key that the root certified,
// only for the audience it names, and only in the hands of the key whose
// thumbprint it names. It knows no revocation: the broker's floors do.
package capability

import (
	"time"

	"bivouac/edge/protocol"
)

// Claims of a capability (JWS, EdDSA, compact form; times are Unix seconds on
// the wire).
type Claims struct {
	ID           protocol.CapabilityID `json:"jti"`
	Audience     string                `json:"aud"` // broker pool
	Tenant       protocol.TenantID     `json:"ten"`
	TenantName   string                `json:"tnm"` // prefixes the path source outside the tenant "local"
	Principal    protocol.PrincipalID  `json:"prn"`
	Agent        string                `json:"agt"`
	AgentDigest  string                `json:"agd"`
	Instance     protocol.InstanceID   `json:"ins"`
	Generation   int64                 `json:"gen"`
	Session      protocol.SessionID    `json:"ses"`
	Turn         protocol.TurnID       `json:"trn"`
	Action       protocol.ActionID     `json:"act,omitempty"`
	Attempt      protocol.AttemptID    `json:"att,omitempty"`
	Fence        protocol.Fence        `json:"fnc"` // owner fence of the turn, or the attempt's
	Grant        protocol.GrantID      `json:"grt,omitempty"`
	SealedGrant  []byte                `json:"sgr,omitempty"`
	Presenter    string                `json:"cnf"` // thumbprint of the presenter's key
	Models       []string              `json:"mdl,omitempty"`
	Destinations []string              `json:"dst,omitempty"`
	Tools        []string              `json:"tls,omitempty"`
	Egress       []string              `json:"egr,omitempty"` // destinations that the attempt's sandboxed code may read packages from
	Slice        protocol.SliceID      `json:"slc,omitempty"`
	SliceBoot    string                `json:"slb,omitempty"`
	SliceCeiling int64                 `json:"slm,omitempty"` // cumulative, millionths of a US dollar
	PolicyDigest string                `json:"pol"`
	ArgsDigest   string                `json:"arg,omitempty"`
	DataBoundary string                `json:"dbd"`
	TraceParent  string                `json:"trc,omitempty"`
	IssuedAt     time.Time             `json:"-"`
	ExpiresAt    time.Time             `json:"-"`
	// Deadline of the turn: an admitted flow lives at most to it.
	Deadline time.Time `json:"-"`
}
