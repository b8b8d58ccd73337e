package broker_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/capability"
	"bivouac/server/ledger"
)

// procedures of the services that the broker serves, from the contract itself.
func procedures() (out []string) {
	services := brokerv1.File_bivouac_broker_v1_broker_proto.Services()
	for i := range services.Len() {
		s := services.Get(i)
		if s.Name() == "FeedService" {
			continue // the server's
		}
		for j := range s.Methods().Len() {
			out = append(out, procedure(s, s.Methods().Get(j)))
		}
	}
	return out
}

func procedure(s protoreflect.ServiceDescriptor, m protoreflect.MethodDescriptor) string {
	return "/" + string(s.FullName()) + "/" + string(m.Name())
}

// Every procedure, called by every role: refused where the table says no, and
// reached where it says yes (the answer is then no refusal of the role).
func TestRoles(t *testing.T) {
	runners := map[string]bool{brokerv1connect.BrokerServiceCallModelProcedure: true}
	strangers := map[string]bool{brokerv1connect.TrustServiceEnrollServerProcedure: true, brokerv1connect.TrustServiceRenewServerProcedure: true}
	inWorld(t, func(t *testing.T, w *world) {
		self, err := identity.SelfSigned(identitytest.NewKey(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for role, caller := range map[string]struct {
			cert *tls.Certificate
			may  func(string) bool
			no   protocol.Code
		}{
			"server":   {w.serverCert, func(string) bool { return true }, ""},
			"runner":   {w.runnerCert, func(p string) bool { return runners[p] }, protocol.CodePermissionDenied},
			"stranger": {&self, func(p string) bool { return strangers[p] }, protocol.CodeUnauthenticated},
			"broker":   {w.certify(identity.RoleBroker, "brk_x", ""), func(string) bool { return false }, protocol.CodePermissionDenied},
		} {
			c, err := link.NewClient(link.Config{
				Address: brokerAddr, Trust: link.Trust{Role: identity.RoleBroker, Root: w.keys.Root()}, Network: w.net.Network("10.0.0.4"),
				Certificate: func() (*tls.Certificate, error) { return caller.cert, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range procedures() {
				code := reach(t.Context(), c, p)
				if may := caller.may(p); (code == "role") == may {
					t.Errorf("%s calls %s: reached=%v, want %v", role, p, code != "role", may)
				}
			}
			c.Close()
		}
	})
}

// reach calls a procedure with an empty message: "role" when the gate refused.
func reach(ctx context.Context, c *link.Client, p string) string {
	client := connect.NewClient[brokerv1.UsageRequest, brokerv1.UsageResponse](c, c.URL()+p)
	var err error
	if p == brokerv1connect.BrokerServiceCallModelProcedure {
		s, e := client.CallServerStream(ctx, connect.NewRequest(&brokerv1.UsageRequest{}))
		if e == nil {
			s.Receive()
			e = s.Err()
			s.Close()
		}
		err = e
	} else {
		_, err = client.CallUnary(ctx, connect.NewRequest(&brokerv1.UsageRequest{}))
	}
	if err != nil && (strings.Contains(err.Error(), "is not for a") || strings.Contains(err.Error(), "needs a certificate of this deployment")) {
		return "role"
	}
	return "reached"
}

func TestEnrolAndRenewServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		key := identitytest.NewKey()
		self, err := identity.SelfSigned(key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		code, err := keyring.NewServerCode(w.dir, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		// The code pins the root: no other trust is there yet.
		first, err := link.NewClient(link.Config{
			Address: brokerAddr, Trust: link.Trust{Role: identity.RoleBroker, Fingerprint: code.Fingerprint}, Network: w.net.Network("10.0.0.5"),
			Certificate: func() (*tls.Certificate, error) { return &self, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		trust := brokerv1connect.NewTrustServiceClient(first, first.URL())
		if _, err := trust.RenewServer(t.Context(), &brokerv1.RenewServerRequest{}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeUnauthenticated {
			t.Errorf("a key that was never enrolled: %v", err)
		}
		res, err := trust.EnrollServer(t.Context(), &brokerv1.EnrollServerRequest{Code: code.Reveal(), Names: []string{"server.example", "10.0.0.2"}})
		if err != nil {
			t.Fatal(err)
		}
		cert := chainOf(t, w, key, res.GetCertificateChain())
		if p, err := identity.FromLeaf(cert.Leaf); err != nil || p.Role != identity.RoleServer || p.ID != res.GetServerId() {
			t.Errorf("%+v %v", p, err)
		}
		enrolled := w.as(cert)
		if _, err := enrolled.broker.Usage(t.Context(), &brokerv1.UsageRequest{}); err != nil {
			t.Errorf("the enrolled server is refused: %v", err)
		}
		if _, err := enrolled.trust.RenewServer(t.Context(), &brokerv1.RenewServerRequest{}); err != nil {
			t.Errorf("renewal in time: %v", err)
		}
	})
}

// Off for two days: the certificate ended, the enrolled key is enough for a new
// one. Offline is not terminal.
func TestRenewAfterTwoDays(t *testing.T) {
	key := identitytest.NewKey()
	var ended *tls.Certificate
	enrol := func(w *world) {
		code, err := keyring.NewServerCode(w.dir, 10*time.Minute)
		w.must(err)
		spki, err := x509.MarshalPKIXPublicKey(key.Public())
		w.must(err)
		id, err := w.keys.EnrolServer(w.t.Context(), code.Reveal(), spki)
		w.must(err)
		chain, _, err := w.keys.Issue(w.t.Context(), authority.Leaf{Role: identity.RoleServer, ID: id, SPKI: spki})
		w.must(err)
		ended = chainOf(w.t, w, key, chain)
		time.Sleep(48 * time.Hour)
	}
	inWorldAfter(t, enrol, func(t *testing.T, w *world) {
		if _, err := w.as(ended).broker.Usage(t.Context(), &brokerv1.UsageRequest{}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeUnauthenticated {
			t.Errorf("an ended certificate: %v", err)
		}
		self, err := identity.SelfSigned(key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		renewed, err := w.as(&self).trust.RenewServer(t.Context(), &brokerv1.RenewServerRequest{})
		if err != nil {
			t.Fatalf("after two days: %v", err)
		}
		if _, err := w.as(chainOf(t, w, key, renewed.GetCertificateChain())).broker.Usage(t.Context(), &brokerv1.UsageRequest{}); err != nil {
			t.Errorf("the renewed server is refused: %v", err)
		}
	})
}

func chainOf(t *testing.T, w *world, key ed25519.PrivateKey, chain []byte) *tls.Certificate {
	t.Helper()
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.VerifyChain(certs, w.keys.Root(), time.Now()); err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key, Leaf: certs[0]}
}

func TestCertify(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		spki, err := x509.MarshalPKIXPublicKey(identitytest.NewKey().Public())
		if err != nil {
			t.Fatal(err)
		}
		ask := &brokerv1.CertifyRunnerRequest{RunnerId: identity.RunnerID(spki).String(), TenantId: w.tenant.String(), PublicKey: spki}
		res, err := server.trust.CertifyRunner(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		certs, err := identity.ParsePEM(res.GetCertificateChain())
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := identity.FromLeaf(certs[0]); p.Role != identity.RoleRunner || p.Tenant != w.tenant || p.ID != ask.GetRunnerId() {
			t.Errorf("%+v", p)
		}
		// A server cannot give one runner's name to another key.
		ask.RunnerId = newID[protocol.RunnerKind]().String()
		if _, err := server.trust.CertifyRunner(t.Context(), ask); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeInvalidArgument {
			t.Errorf("another name: %v", err)
		}

		pub := identitytest.NewKey().Public().(ed25519.PublicKey)
		key, err := server.trust.CertifySigningKey(t.Context(), &brokerv1.CertifySigningKeyRequest{PublicKey: pub})
		if err != nil {
			t.Fatal(err)
		}
		s, err := capability.VerifyStatement(key.GetStatement(), w.keys.Root().PublicKey.(ed25519.PublicKey))
		if err != nil || s.KeyID != key.GetKeyId() || s.Server != keyring.ServerID(w.serverCert.Leaf.RawSubjectPublicKeyInfo).String() || s.NotAfter.UnixMicro() != key.GetNotAfterUs() {
			t.Errorf("%+v %v", s, err)
		}
		if _, err := server.trust.CertifySigningKey(t.Context(), &brokerv1.CertifySigningKeyRequest{PublicKey: []byte("short")}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeInvalidArgument {
			t.Errorf("a bad key: %v", err)
		}
		if r, err := server.trust.SignReceipt(t.Context(), &brokerv1.SignReceiptRequest{Receipt: []byte(`{"a":1}`)}); err != nil || r.GetJws() == "" {
			t.Errorf("%v %v", r, err)
		}
		if _, err := server.trust.SignReceipt(t.Context(), &brokerv1.SignReceiptRequest{Receipt: []byte(`{"b":1, "a":1}`)}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeInvalidArgument {
			t.Errorf("not canonical: %v", err)
		}
	})
}

// A ledger's head is signed where it follows the last one, and by no other way; a
// fork is refused by name, also by a broker that starts again. INV-8.
func TestHeadsFollow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		head := func(size int64, root byte, epoch uint32) []byte {
			r, err := ledger.Head{Tenant: w.tenant, Size: size, Root: ledger.Hash{root}, At: time.Now(), Epoch: epoch}.Receipt()
			w.must(err)
			return r
		}
		sign := func(after, size int64, root byte, epoch uint32, proof ...[]byte) error {
			_, err := server.trust.SignHead(t.Context(), &brokerv1.SignHeadRequest{Head: head(size, root, epoch), AfterSize: after, Proof: proof})
			return protocol.FromConnect(err)
		}
		want := func(name string, err error, code protocol.Code, says string) {
			t.Helper()
			if protocol.CodeOf(err) != code || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", name, err)
			}
		}
		last, err := server.trust.LastHead(t.Context(), &brokerv1.LastHeadRequest{TenantId: w.tenant.String()})
		if err != nil || last.GetSize() != 0 {
			t.Fatalf("%v %v", last, err)
		}
		signed, err := server.trust.SignHead(t.Context(), &brokerv1.SignHeadRequest{Head: head(5, 1, 1)})
		w.must(err)
		if got, err := ledger.OpenHead(signed.GetJws(), identity.Fingerprint(w.keys.Root())); err != nil || got.Size != 5 || got.Epoch != 1 {
			t.Errorf("%+v %v", got, err)
		}
		if last, err = server.trust.LastHead(t.Context(), &brokerv1.LastHeadRequest{TenantId: w.tenant.String()}); err != nil || last.GetSize() != 5 || last.GetRoot()[0] != 1 || last.GetEpoch() != 1 {
			t.Errorf("%v %v", last, err)
		}
		if err := sign(5, 5, 1, 1); err != nil {
			t.Errorf("again, as after a lost answer: %v", err)
		}
		want("another root", sign(5, 5, 2, 1), protocol.CodeDataLoss, "(fork)")
		want("a proof of nothing", sign(5, 6, 2, 1, make([]byte, 32)), protocol.CodeDataLoss, "(fork)")
		want("shorter", sign(5, 4, 1, 1), protocol.CodeDataLoss, "(shorter)")
		want("of before a restore", sign(5, 4, 1, 2), protocol.CodeFailedPrecondition, "ledger accept --epoch 2")
		want("half a hash", sign(5, 6, 2, 1, make([]byte, 31)), protocol.CodeInvalidArgument, "31 bytes")
		want("without an epoch", sign(5, 6, 1, 0), protocol.CodeInvalidArgument, "epoch")
		if !strings.Contains(w.logged(), "A LEDGER DOES NOT FOLLOW") {
			t.Error("the refusals are not in the log")
		}
		_, err = server.trust.SignReceipt(t.Context(), &brokerv1.SignReceiptRequest{Receipt: head(9, 9, 1)})
		want("as any receipt", protocol.FromConnect(err), protocol.CodeInvalidArgument, "SignHead")
		_, err = w.as(w.runnerCert).trust.SignHead(t.Context(), &brokerv1.SignHeadRequest{Head: head(5, 1, 1), AfterSize: 5})
		want("by a runner", protocol.FromConnect(err), protocol.CodePermissionDenied, "not for a runner")
	})
}

// Reach asks what admission would ask, without a capability, and admits nothing.
func TestReach(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		tool := func(change func(*brokerv1.HttpTool)) *brokerv1.HttpTool {
			out := httpTool()
			if change != nil {
				change(out)
			}
			return out
		}
		ask := func(tenant, boundary string) *brokerv1.ReachResponse {
			t.Helper()
			r, err := server.broker.Reach(t.Context(), &brokerv1.ReachRequest{TenantId: w.tenant.String(), TenantName: tenant, Agent: "assistant", DataBoundary: boundary,
				Models: []string{"main", "unpriced", "nowhere"}, Egress: []string{"modules", "forge", "weather", "unlisted", "elsewhere", "nowhere"},
				Tools: []*brokerv1.HttpTool{tool(nil), tool(func(h *brokerv1.HttpTool) { h.Method = "DELETE" }), tool(func(h *brokerv1.HttpTool) { h.Credential = "provider-key" }),
					tool(func(h *brokerv1.HttpTool) { h.Destination = "nowhere" })}})
			w.must(err)
			return r
		}
		said := func(rs []*brokerv1.Reach) (out []string) {
			for _, r := range rs {
				out = append(out, r.GetBy())
				if r.GetAdmitted() != (r.GetReason() == "") {
					t.Errorf("%v", r)
				}
			}
			return out
		}
		r := ask("local", "personal")
		if got := said(r.GetModels()); !slices.Equal(got, []string{"", "policy", "path"}) {
			t.Errorf("models: %v", got)
		}
		if got := said(r.GetTools()); !slices.Equal(got, []string{"", "policy", "policy", "path"}) {
			t.Errorf("tools: %v", got)
		}
		if got := said(r.GetEgress()); !slices.Equal(got, []string{"", "", "policy", "path", "boundary", "path"}) {
			t.Errorf("registries: %v", got)
		}
		if m := r.GetEgress()[1]; m.GetProtocol() != "git" || !strings.Contains(m.GetVerbs(), "no push") || m.GetUrl() != "http://tools.example/git" || m.GetIntention() == "" {
			t.Errorf("a registry: %v", m)
		}
		if m := r.GetModels()[0]; m.GetIntention() == "" || r.GetEgress()[3].GetIntention() == "" {
			t.Errorf("without the entry that decides: %v, %v", m, r.GetEgress()[3])
		}
		if got := said(ask("local", "secret").GetModels()); got[0] != "boundary" {
			t.Errorf("another boundary: %v", got)
		}
		if got := said(ask("capped", "personal").GetTools()); got[0] != "cap" {
			t.Errorf("a capped tenant: %v", got)
		}
		if got := said(ask("stranger", "personal").GetTools()); got[0] != "path" {
			t.Errorf("a tenant without a path: %v", got)
		}
		if len(w.tools.requests())+len(w.scripted.Received()) != 0 {
			t.Error("something was sent")
		}
	})
}

func TestAuthorityOverTheWire(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		d, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
		if err != nil {
			t.Fatal(err)
		}
		if len(d.GetModels()) != 6 || d.GetModels()[2].GetName() != "main" || !d.GetModels()[2].GetPriced() || d.GetModels()[5].GetPriced() ||
			d.GetDestinations()[2].GetCredentials()[0] != "weather-key" || d.GetPool() != "default" || d.GetFeedAgeMs() < 0 || d.GetFeedAgeMs() > 1000 {
			t.Errorf("%v", d)
		}
		tenant := newID[protocol.TenantKind]()
		put := &brokerv1.PutCredentialRequest{TenantId: tenant.String(), Name: "weather-key", Sealed: authoritytest.Seal(t, w.keys, "weather-key", toolKey)}
		if _, err := server.authority.PutCredential(t.Context(), put); err != nil {
			t.Fatal(err)
		}
		list, err := server.authority.ListCredentials(t.Context(), &brokerv1.ListCredentialsRequest{TenantId: tenant.String()})
		stored := slices.DeleteFunc(list.GetCredentials(), func(c *brokerv1.Credential) bool { return c.GetUpdatedUs() == 0 }) // the rest is issued
		if err != nil || len(stored) != 1 || stored[0].GetUsedBy()[0] != "destination weather" {
			t.Errorf("%v %v", list, err)
		}
		create := &brokerv1.CreateGrantRequest{GrantId: newID[protocol.GrantKind]().String(), TenantId: tenant.String(), PrincipalId: newID[protocol.PrincipalKind]().String(), Agent: "a", Credentials: []string{"weather-key"}}
		if r, err := server.authority.CreateGrant(t.Context(), create); err != nil || len(r.GetSealed()) == 0 {
			t.Fatal(err)
		}
		grants, err := server.authority.ListGrants(t.Context(), &brokerv1.ListGrantsRequest{TenantId: tenant.String()})
		if err != nil || len(grants.GetGrants()) != 1 || grants.GetGrants()[0].GetRevokedUs() != 0 {
			t.Errorf("%v %v", grants, err)
		}
		if _, err := server.authority.DeleteCredential(t.Context(), &brokerv1.DeleteCredentialRequest{TenantId: tenant.String(), Name: "weather-key"}); err != nil {
			t.Error(err)
		}
		if _, err := server.authority.DeleteCredential(t.Context(), &brokerv1.DeleteCredentialRequest{TenantId: tenant.String(), Name: "weather-key"}); protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeNotFound {
			t.Errorf("%v", err)
		}
	})
}
