package policy

import (
	"testing"

	"bivouac/edge/protocol"
)

// Each kind has one proof and its origins: every other proof and origin is refused,
// for every kind, and so is a kind without a row.
func TestOrigins(t *testing.T) {
	proofs := map[Subject]Proof{SubjectUser: ProofToken, SubjectService: ProofToken, SubjectRunner: ProofCertificate, SubjectBroker: ProofCertificate, SubjectServer: ProofCertificate}
	origins := map[Subject]map[Origin]bool{
		SubjectUser:    {OriginAPI: true, OriginCLI: true},
		SubjectService: {OriginAPI: true, OriginCLI: true, OriginSchedule: true, OriginWebhook: true},
	}
	for _, s := range append(Subjects(), "made-up", "") {
		for _, p := range []Proof{ProofToken, ProofCertificate, ProofNone, ""} {
			if err := MayProve(s, p); (err == nil) != (p != "" && proofs[s] == p) || err != nil && protocol.CodeOf(err) != protocol.CodeUnauthenticated {
				t.Errorf("%s by %s: %v", s, p, err)
			}
		}
		for _, o := range []Origin{OriginAPI, OriginCLI, OriginSchedule, OriginWebhook, OriginAgent, "made-up", ""} {
			if err := MayClaim(s, o); (err == nil) != origins[s][o] || err != nil && protocol.CodeOf(err) != protocol.CodePermissionDenied {
				t.Errorf("%s from %s: %v", s, o, err)
			}
		}
	}
}
