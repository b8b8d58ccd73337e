package policy

import (
	"maps"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// Subject is a kind of who may act.
type Subject string

// The kinds.
const (
	SubjectUser    Subject = "user"
	SubjectService Subject = "service"
	SubjectRunner  Subject = "runner"
	SubjectBroker  Subject = "broker"
	SubjectServer  Subject = "server"
	// SubjectDevice is what a machine does by itself, SubjectAgent what a model asks
	// for. Both act inside a lease or a turn that somebody else stands for.
	SubjectDevice Subject = "device"
	SubjectAgent  Subject = "agent"
)

// Proof is a way to show who one is.
type Proof string

// The ways.
const (
	ProofToken       Proof = "token"       // a bearer token at the public listener
	ProofCertificate Proof = "certificate" // a key that the root certified, at the machines' listener
	ProofNone        Proof = "none"        // it shows nothing: it never calls
)

// Origin is where a turn comes from, as whoever submits it says.
type Origin string

// The origins.
const (
	OriginAPI      Origin = "api" // when nothing is said
	OriginCLI      Origin = "cli"
	OriginSchedule Origin = "schedule"
	OriginWebhook  Origin = "webhook"
	OriginAgent    Origin = "agent" // a turn of another agent
)

// standing is the one way in which a kind shows who it is, and the origins that it
// may claim for a turn.
type standing struct {
	proof   Proof
	origins []Origin
}

// subjects is the whole table. What has no row is nobody. A clock and a hook are
// services, with a token of their own that can be taken back; a person's token does
// not pass for one, and nobody says yet that an agent sent a turn.
var subjects = map[Subject]standing{
	SubjectUser:    {ProofToken, []Origin{OriginAPI, OriginCLI}},
	SubjectService: {ProofToken, []Origin{OriginAPI, OriginCLI, OriginSchedule, OriginWebhook}},
	SubjectRunner:  {ProofCertificate, nil},
	SubjectBroker:  {ProofCertificate, nil},
	SubjectServer:  {ProofCertificate, nil},
	SubjectDevice:  {ProofNone, nil},
	SubjectAgent:   {ProofNone, nil},
}

// MayProve refuses a kind that shows who it is in another way than its own. INV-9.
func MayProve(s Subject, by Proof) error {
	row, known := subjects[s]
	switch {
	case !known || row.proof == ProofNone:
		return protocol.Errorf(protocol.CodeUnauthenticated, "a %q does not log in: it is none of the kinds that may", s)
	case row.proof != by:
		return protocol.Errorf(protocol.CodeUnauthenticated, "a %s shows who it is by its %s, not by a %s", s, row.proof, by)
	}
	return nil
}

// MayClaim refuses an origin that a kind may not claim for a turn.
func MayClaim(s Subject, o Origin) error {
	row := subjects[s]
	if slices.Contains(row.origins, o) {
		return nil
	}
	if len(row.origins) == 0 {
		return protocol.Errorf(protocol.CodePermissionDenied, "a %s submits no turns", s)
	}
	var may []string
	for _, one := range row.origins {
		may = append(may, string(one))
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "a %s may not say that a turn comes from %q: it may say %s; a schedule or a webhook is a service: bivouac principal add --kind service",
		s, o, strings.Join(may, ", "))
}

// Subjects are all kinds, sorted.
func Subjects() []Subject { return slices.Sorted(maps.Keys(subjects)) }
