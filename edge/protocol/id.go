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

type (
	tenantKind    struct{}
	principalKind struct{}
	instanceKind  struct{}
	sessionKind   struct{}
	turnKind      struct{}
	actionKind    struct{}
	attemptKind   struct{}
	approvalKind  struct{}
	runnerKind    struct{}
	bindingKind   struct{}
	grantKind     struct{}
	capabilityK   struct{}
	sliceKind     struct{}
	replicaKind   struct{}
	cleanupKind   struct{}
	callKind      struct{}
)

func (tenantKind) Prefix() string    { return "ten" }
func (principalKind) Prefix() string { return "prn" }
func (instanceKind) Prefix() string  { return "ins" }
func (sessionKind) Prefix() string   { return "ses" }
func (turnKind) Prefix() string      { return "trn" }
func (actionKind) Prefix() string    { return "act" }
func (attemptKind) Prefix() string   { return "att" }
func (approvalKind) Prefix() string  { return "apr" }
func (runnerKind) Prefix() string    { return "run" }
func (bindingKind) Prefix() string   { return "bnd" }
func (grantKind) Prefix() string     { return "grt" }
func (capabilityK) Prefix() string   { return "cap" }
func (sliceKind) Prefix() string     { return "slc" }
func (replicaKind) Prefix() string   { return "rep" }
func (cleanupKind) Prefix() string   { return "cln" }
func (callKind) Prefix() string      { return "cal" }

func (tenantKind) String() string    { return "a tenant id" }
func (principalKind) String() string { return "a principal id" }
func (instanceKind) String() string  { return "an instance id" }
func (sessionKind) String() string   { return "a session id" }
func (turnKind) String() string      { return "a turn id" }
func (actionKind) String() string    { return "an action id" }
func (attemptKind) String() string   { return "an attempt id" }
func (approvalKind) String() string  { return "an approval id" }
func (runnerKind) String() string    { return "a runner id" }
func (bindingKind) String() string   { return "a binding id" }
func (grantKind) String() string     { return "a grant id" }
func (capabilityK) String() string   { return "a capability id" }
func (sliceKind) String() string     { return "a budget slice id" }
func (replicaKind) String() string   { return "a replica id" }
func (cleanupKind) String() string   { return "a cleanup id" }
func (callKind) String() string      { return "a model call id" }

// The identifiers of the product, one type each.
type (
	TenantID     = ID[tenantKind]
	PrincipalID  = ID[principalKind]
	InstanceID   = ID[instanceKind]
	SessionID    = ID[sessionKind]
	TurnID       = ID[turnKind]
	ActionID     = ID[actionKind]
	AttemptID    = ID[attemptKind]
	ApprovalID   = ID[approvalKind]
	RunnerID     = ID[runnerKind]
	BindingID    = ID[bindingKind]
	GrantID      = ID[grantKind]
	CapabilityID = ID[capabilityK]
	SliceID      = ID[sliceKind]
	ReplicaID    = ID[replicaKind]
	CleanupID    = ID[cleanupKind]
	CallID       = ID[callKind]
)
