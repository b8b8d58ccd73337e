package server_test

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/jobs"
	"bivouac/jobs/jobstest"
	"bivouac/jobs/workload"
	"bivouac/server/api/apiv1"
)

// Ids of nodes.
const (
	nodeOne = "0c4b1a52-7e1a-3f65-9c1e-5a2b6d7e8f90"
	nodeTwo = "1c4b1a52-7e1a-3f65-9c1e-5a2b6d7e8f91"
)

// enrolling is a world whose server takes the identities of a signer, for alice.
func enrolling(t *testing.T, s *jobstest.Signer) *world {
	t.Helper()
	w := prepare(t)
	w.config.Nomad = &jobs.Config{Address: "https://nomad.example.org:4646", Transport: s}
	w.startBroker()
	w.startServer()
	w.startFeed()
	w.awaitReady()
	who, err := w.as(w.token).Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	w.config.Nomad.Rules = []workload.Rule{{Name: "agents", Audience: "bivouac.example.org", Namespace: "agents", Job: "bivouac-runner", Task: "edge",
		Tenant: protocol.TenantID(who.GetPrincipal().GetTenantId()), Principal: "alice", Actions: []string{"turn"}}}
	w.startServer()
	w.awaitReady()
	return w
}

func (w *world) enrollBy(m *machine, token, name string) (*runnerv1.EnrollResponse, error) {
	res, err := m.api.Enroll(w.t.Context(), &runnerv1.EnrollRequest{WorkloadIdentity: token, Name: name,
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
	return res, protocol.FromConnect(err)
}

// A node is one runner of the principal that the configuration names: the same key may
// repeat itself, another is refused until the node is free. INV-9.
func TestEnrolByWorkload(t *testing.T) {
	s := jobstest.NewSigner(t)
	synctest.Test(t, func(t *testing.T) {
		w := enrolling(t, s)
		alice := w.as(w.token)
		of := func(node string) string { return s.Sign(t, "one", jobstest.Claims(node), nil) }
		refused := func(what string, m *machine, token, name string, code protocol.Code, says string) {
			t.Helper()
			if _, err := w.enrollBy(m, token, name); protocol.CodeOf(err) != code || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		first := w.stranger()
		refused("another audience", first, s.Sign(t, "one", jobstest.Claims(nodeOne), map[string]any{"aud": "vault.io"}), "node-1", protocol.CodePermissionDenied, "set aud")
		refused("a name of no form", first, of(nodeOne), "Node 1", protocol.CodeInvalidArgument, "--enrol-name")
		refusals := func() (all []*apiv1.Finding) {
			t.Helper()
			res, err := alice.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(res.GetFindings(), func(f *apiv1.Finding) bool { return f.GetCheck() != "enrolment" })
		}
		if all := refusals(); len(all) != 2 || !strings.Contains(fmt.Sprint(all), `it is for \"vault.io\"`) || !strings.Contains(fmt.Sprint(all), "--enrol-name") {
			t.Errorf("the doctor says of refusals: %v", all)
		}
		res, err := w.enrollBy(first, of(nodeOne), "node-1")
		if all := refusals(); len(all) != 1 || all[0].GetLevel() != "ok" {
			t.Errorf("it enrolled, and the doctor says: %v", all)
		}
		spki, keyErr := x509.MarshalPKIXPublicKey(first.key.Public())
		if err != nil || keyErr != nil || res.GetRunnerId() != identity.RunnerID(spki).String() {
			t.Fatalf("%v %v", res, err)
		}
		if again, err := w.enrollBy(first, of(nodeOne), "node-1"); err != nil || again.GetRunnerId() != res.GetRunnerId() {
			t.Errorf("the same key again: %v %v", again, err)
		}
		refused("the same key for another node", first, of(nodeTwo), "node-2", protocol.CodeAlreadyExists, "already runner")
		second := w.stranger()
		refused("another key for the node", second, of(nodeOne), "node-1b", protocol.CodeAlreadyExists, "--free-node")
		refused("a name twice", second, of(nodeTwo), "node-1", protocol.CodeAlreadyExists, "--enrol-name")
		if _, err := w.enrollBy(second, of(nodeTwo), "node-2"); err != nil {
			t.Errorf("another node: %v", err)
		}
		all, err := alice.Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
		if err != nil || len(all.GetRunners()) != 2 {
			t.Errorf("%v %v", all, err)
		}
		third := w.stranger()
		if _, err := alice.Runners.RevokeRunner(t.Context(), &apiv1.RevokeRunnerRequest{RunnerId: res.GetRunnerId()}); err != nil {
			t.Fatal(err)
		}
		refused("the revoked key", first, of(nodeOne), "node-1", protocol.CodeAlreadyExists, "REVOKED")
		refused("another key after a revocation", third, of(nodeOne), "node-1", protocol.CodePermissionDenied, "--free-node")
		if _, err := alice.Runners.RevokeRunner(t.Context(), &apiv1.RevokeRunnerRequest{RunnerId: res.GetRunnerId(), FreeNode: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.enrollBy(third, of(nodeOne), "node-1"); err != nil {
			t.Errorf("after the node was freed: %v", err)
		}
	})
}

// Without a nomad block no identity is taken; with both a code and an identity none is
// chosen; while Nomad does not answer, that is said.
func TestEnrolByWorkloadElsewhere(t *testing.T) {
	s := jobstest.NewSigner(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := s.Sign(t, "one", jobstest.Claims(nodeOne), nil)
		if _, err := w.enrollBy(w.stranger(), token, "node-1"); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "no nomad block") {
			t.Errorf("%v", err)
		}
		m := w.stranger()
		_, err := m.api.Enroll(t.Context(), &runnerv1.EnrollRequest{WorkloadIdentity: token, Code: "join_x", CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
		if codeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("both: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := enrolling(t, s)
		s.Down(true)
		defer s.Down(false)
		if _, err := w.enrollBy(w.stranger(), s.Sign(t, "one", jobstest.Claims(nodeOne), nil), "node-1"); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "jwks.json") {
			t.Errorf("%v", err)
		}
	})
}
