package protocol

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID is an identifier of one kind: a prefix, an underscore and a ULID in lower
// case, such as "trn_01jdv3k8x0q6v9w2m4t7y5z1ab". Different kinds are different
// Go types, and Parse refuses a foreign prefix. The zero value is "no id".
type ID[K Kind] string

// Kind names the prefix of an identifier.
type Kind interface{ Prefix() string }

// NewID makes an identifier that sorts by now.
func NewID[K Kind](now time.Time, entropy io.Reader) ID[K] {
	var k K
	u := ulid.MustNew(ulid.Timestamp(now), entropy)
	return ID[K](k.Prefix() + "_" + strings.ToLower(u.String()))
}

// ParseID reads an identifier and refuses one of another kind.
func ParseID[K Kind](s string) (ID[K], error) {
	var k K
	prefix, rest, ok := strings.Cut(s, "_")
	if !ok || prefix != k.Prefix() {
		return "", Errorf(CodeInvalidArgument, "%q is not %s: it must begin with %s_", clip(s), kindName(k), k.Prefix())
	}
	if _, err := ulid.ParseStrict(rest); err != nil || rest != strings.ToLower(rest) {
		return "", Errorf(CodeInvalidArgument, "%q is not %s: 26 lower-case letters and digits must follow %s_", clip(s), kindName(k), k.Prefix())
	}
	return ID[K](s), nil
}

func (id ID[K]) String() string { return string(id) }

// IsZero reports "no id".
func (id ID[K]) IsZero() bool { return id == "" }

// UnmarshalText parses strictly; the empty text is "no id".
func (id *ID[K]) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*id = ""
		return nil
	}
	p, err := ParseID[K](string(b))
	if err != nil {
		return err
	}
	*id = p
	return nil
}

func (id ID[K]) MarshalText() ([]byte, error) { return []byte(id), nil }

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func kindName(k Kind) string {
	if n, ok := k.(fmt.Stringer); ok {
		return n.String()
	}
	return "an id of that kind"
}

// The kinds, for NewID[TurnKind] and ParseID[TurnKind].
type (
	TenantKind     struct{}
	PrincipalKind  struct{}
	InstanceKind   struct{}
	SessionKind    struct{}
	TurnKind       struct{}
	ActionKind     struct{}
	AttemptKind    struct{}
	ApprovalKind   struct{}
	RunnerKind     struct{}
	BindingKind    struct{}
	GrantKind      struct{}
	CapabilityKind struct{}
	SliceKind      struct{}
	ReplicaKind    struct{}
	CleanupKind    struct{}
	CallKind       struct{}
)

func (TenantKind) Prefix() string     { return "ten" }
func (PrincipalKind) Prefix() string  { return "prn" }
func (InstanceKind) Prefix() string   { return "ins" }
func (SessionKind) Prefix() string    { return "ses" }
func (TurnKind) Prefix() string       { return "trn" }
func (ActionKind) Prefix() string     { return "act" }
func (AttemptKind) Prefix() string    { return "att" }
func (ApprovalKind) Prefix() string   { return "apr" }
func (RunnerKind) Prefix() string     { return "run" }
func (BindingKind) Prefix() string    { return "bnd" }
func (GrantKind) Prefix() string      { return "grt" }
func (CapabilityKind) Prefix() string { return "cap" }
func (SliceKind) Prefix() string      { return "slc" }
func (ReplicaKind) Prefix() string    { return "rep" }
func (CleanupKind) Prefix() string    { return "cln" }
func (CallKind) Prefix() string       { return "cal" }

func (TenantKind) String() string     { return "a tenant id" }
func (PrincipalKind) String() string  { return "a principal id" }
func (InstanceKind) String() string   { return "an instance id" }
func (SessionKind) String() string    { return "a session id" }
func (TurnKind) String() string       { return "a turn id" }
func (ActionKind) String() string     { return "an action id" }
func (AttemptKind) String() string    { return "an attempt id" }
func (ApprovalKind) String() string   { return "an approval id" }
func (RunnerKind) String() string     { return "a runner id" }
func (BindingKind) String() string    { return "a binding id" }
func (GrantKind) String() string      { return "a grant id" }
func (CapabilityKind) String() string { return "a capability id" }
func (SliceKind) String() string      { return "a budget slice id" }
func (ReplicaKind) String() string    { return "a replica id" }
func (CleanupKind) String() string    { return "a cleanup id" }
func (CallKind) String() string       { return "a model call id" }

// The identifiers of the product, one type each.
type (
	TenantID     = ID[TenantKind]
	PrincipalID  = ID[PrincipalKind]
	InstanceID   = ID[InstanceKind]
	SessionID    = ID[SessionKind]
	TurnID       = ID[TurnKind]
	ActionID     = ID[ActionKind]
	AttemptID    = ID[AttemptKind]
	ApprovalID   = ID[ApprovalKind]
	RunnerID     = ID[RunnerKind]
	BindingID    = ID[BindingKind]
	GrantID      = ID[GrantKind]
	CapabilityID = ID[CapabilityKind]
	SliceID      = ID[SliceKind]
	ReplicaID    = ID[ReplicaKind]
	CleanupID    = ID[CleanupKind]
	CallID       = ID[CallKind]
)
