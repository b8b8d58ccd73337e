package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// A join while the broker is down uses nothing up, names the broker, and leaves no
// machine; the same command again joins, also with another key.
func TestEnrollWithoutABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		res, err := alice.Runners.CreateJoinCode(t.Context(), &apiv1.CreateJoinCodeRequest{Name: "laptop"})
		if err != nil {
			t.Fatal(err)
		}
		machines := func() int {
			all, err := alice.Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return len(all.GetRunners())
		}
		w.broker.RefuseRunners(protocol.Errorf(protocol.CodeUnavailable, "cannot reach broker:7402"))
		err = w.enroll(w.stranger(), res.GetCode())
		if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "cannot reach its broker") || !strings.Contains(err.Error(), "bivouac-broker run") || machines() != 0 {
			t.Errorf("without a broker: %v, %d machines", err, machines())
		}
		w.broker.RefuseRunners(nil)
		if err := w.enroll(w.stranger(), res.GetCode()); err != nil || machines() != 1 {
			t.Errorf("with it: %v, %d machines", err, machines())
		}
	})
}

func TestEnroll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		invited := 0
		w := newWorld(t)
		alice := w.as(w.token)
		invite := func() string {
			invited++
			res, err := alice.Runners.CreateJoinCode(t.Context(), &apiv1.CreateJoinCodeRequest{Name: fmt.Sprintf("laptop%d", invited), TtlSeconds: 60})
			if err != nil {
				t.Fatal(err)
			}
			if want := "bivouac-edge join https://" + runnerAddr + " " + res.GetCode(); res.GetCommand() != want {
				t.Errorf("command %q", res.GetCommand())
			}
			return res.GetCode()
		}
		code := invite()
		m := w.stranger()
		enroll := func(m *machine, code string) error {
			_, err := m.api.Enroll(t.Context(), &runnerv1.EnrollRequest{Code: code, CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
			return protocol.FromConnect(err)
		}
		// A stranger may enrol and nothing else.
		if _, err := m.api.Renew(t.Context(), &runnerv1.RenewRequest{}); codeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "join") {
			t.Errorf("a stranger renews: %v", err)
		}
		if err := enroll(m, code[:len(code)-1]); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("a mistyped code: %v", err)
		}
		other := code[:len(code)-64] + strings.Repeat("0", 64)
		if err := enroll(m, other); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a code of another server: %v", err)
		}
		if err := enroll(m, code); err != nil {
			t.Fatalf("a good code: %v", err)
		}
		if err := w.enroll(m, code); err != nil {
			t.Errorf("the same code and key again: %v", err)
		}
		if m.id != identity.RunnerID(identityKey(t, m)).String() {
			t.Errorf("the id %s is not of the key", m.id)
		}
		if err := enroll(w.stranger(), code); err == nil || protocol.CodeOf(err).Retryable() {
			t.Errorf("a used code: %v", err)
		}
		late := invite()
		time.Sleep(61 * time.Second)
		if err := enroll(w.stranger(), late); err == nil || protocol.CodeOf(err).Retryable() {
			t.Errorf("an ended code: %v", err)
		}
		// Enrolled, it is a stranger no more.
		if err := enroll(m, invite()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-edge leave") {
			t.Errorf("an enrolled key enrols: %v", err)
		}
		if _, err := m.api.RenewCertificate(t.Context(), &runnerv1.RenewCertificateRequest{}); err != nil {
			t.Errorf("renewal: %v", err)
		}
	})
}

func codeOf(err error) protocol.Code { return protocol.CodeOf(protocol.FromConnect(err)) }

func identityKey(t *testing.T, m *machine) []byte {
	t.Helper()
	return m.cert.Leaf.RawSubjectPublicKeyInfo
}

// attach reads a mailbox into a channel until the stream ends.
func (w *world) attach(m *machine, epoch, cursor int64) (mail <-chan *runnerv1.AttachResponse, end <-chan error) {
	w.t.Helper()
	stream, err := m.api.Attach(w.t.Context(), &runnerv1.AttachRequest{Epoch: epoch, Cursor: cursor})
	if err != nil {
		w.t.Fatal(err)
	}
	out, over := make(chan *runnerv1.AttachResponse, 1000), make(chan error, 1)
	go func() {
		for stream.Receive() {
			out <- stream.Msg()
		}
		over <- protocol.FromConnect(stream.Err())
		stream.Close()
	}()
	return out, over
}

func TestAttachBeatsAndYieldsToALaterEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.join(w.as(w.token), "laptop", "files.read")
		epoch := w.connect(m)
		mail, end := w.attach(m, epoch, 0)
		time.Sleep(21 * time.Second)
		if n := len(mail); n != 5 { // at once, and each 5 s
			t.Errorf("%d messages in 21 s", n)
		}
		list, err := w.as(w.token).Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
		if err != nil || !list.GetRunners()[0].GetConnected() || list.GetRunners()[0].GetTransport() != "http/2" {
			t.Errorf("%v %v", list, err)
		}
		if next := w.connect(m); next <= epoch {
			t.Errorf("epoch %d after %d", next, epoch)
		}
		select {
		case err := <-end:
			if protocol.CodeOf(err) != protocol.CodeStaleFence {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(6 * time.Second):
			t.Error("the earlier epoch's stream lives on")
		}
	})
}

func TestRevokedRunnerIsToldToEnrolAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		m, other := w.join(alice, "laptop"), w.join(alice, "desktop")
		_, end := w.attach(m, w.connect(m), 0)
		otherMail, otherEnd := w.attach(other, w.connect(other), 0)
		time.Sleep(time.Second)
		if _, err := alice.Runners.RevokeRunner(t.Context(), &apiv1.RevokeRunnerRequest{RunnerId: m.id}); err != nil {
			t.Fatal(err)
		}
		if err := <-end; protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "enrol again") {
			t.Errorf("the stream ended with %v", err)
		}
		_, err := m.api.Renew(t.Context(), &runnerv1.RenewRequest{})
		if codeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "enrol again") {
			t.Errorf("a call: %v", err)
		}
		w.eventually("the broker knows", func() bool {
			minimum, ok := w.broker.Floor(identity.Thumbprint(identityKey(t, m)))
			return ok && minimum > 0
		})
		time.Sleep(10 * time.Second)
		select {
		case err := <-otherEnd:
			t.Errorf("another runner's stream ended: %v", err)
		default:
		}
		if len(otherMail) < 3 {
			t.Errorf("another runner heard %d times", len(otherMail))
		}
	})
}

// A device action goes through the mailbox: offered, claimed, reported, and kept
// until it is acknowledged.
func TestMailIsKeptUntilAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedientDevice(w)
		alice := w.as(w.token)
		w.apply(alice, reader)
		m := w.join(alice, "laptop", "files.read")
		epoch := w.connect(m)
		mail, _ := w.attach(m, epoch, 0)
		session := w.open(alice, "reader")
		turn := w.submit(alice, session, "m1", "read notes/a.txt")
		offer := nextOffer(t, mail)
		if offer.GetSeq() == 0 {
			t.Fatal("an offer without a sequence")
		}
		// A new connection sees it again; after the acknowledgement, no more.
		epoch = w.connect(m)
		mail, _ = w.attach(m, epoch, 0)
		if again := nextOffer(t, mail); again.GetSeq() != offer.GetSeq() || again.GetOffer().GetAttemptId() != offer.GetOffer().GetAttemptId() {
			t.Errorf("not the same offer: %v and %v", offer, again)
		}
		claim, err := m.api.Claim(t.Context(), &runnerv1.ClaimRequest{AttemptId: offer.GetOffer().GetAttemptId(), Epoch: epoch, BootNonce: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.api.Acknowledge(t.Context(), &runnerv1.AcknowledgeRequest{Epoch: epoch, Seq: offer.GetSeq()}); err != nil {
			t.Fatal(err)
		}
		epoch = w.connect(m)
		mail, _ = w.attach(m, epoch, 0)
		time.Sleep(6 * time.Second)
		for len(mail) > 0 {
			if got := <-mail; got.GetOffer().GetAttemptId() == offer.GetOffer().GetAttemptId() {
				t.Errorf("sent after its acknowledgement: %v", got)
			}
		}
		report(t, m, offer.GetOffer().GetAttemptId(), claim.GetTerms().GetFence(), epoch, `{"content":"hello from the file"}`)
		got := w.awaitTurn(alice, turn.GetId(), "COMPLETED")
		if !strings.Contains(got.GetAnswer(), "hello from the file") || got.GetAttempts()[0].GetRunnerName() != "laptop" {
			t.Errorf("turn %v", got)
		}
	})
}

// A machine that took work and fell silent leaves a debt, which the tenant's
// admins see until there is evidence. INV-18.
func TestCleanupDebtIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedientDevice(w)
		alice := w.as(w.token)
		w.apply(alice, reader)
		m := w.join(alice, "laptop", "files.read")
		epoch := w.connect(m)
		mail, _ := w.attach(m, epoch, 0)
		turn := w.submit(alice, w.open(alice, "reader"), "m1", "read notes/a.txt")
		attempt := nextOffer(t, mail).GetOffer().GetAttemptId()
		if _, err := m.api.Claim(t.Context(), &runnerv1.ClaimRequest{AttemptId: attempt, Epoch: epoch, BootNonce: "n1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := alice.Turns.CancelTurn(t.Context(), &apiv1.CancelTurnRequest{TurnId: turn.GetId()}); err != nil {
			t.Fatal(err)
		}
		bob, _ := w.add(alice, "", "bob", false)
		if _, err := bob.Runners.ListCleanups(t.Context(), &apiv1.ListCleanupsRequest{}); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("who is no admin: %v", err)
		}
		var debt *apiv1.Cleanup
		shown := func() *apiv1.Cleanup {
			list, err := alice.Runners.ListCleanups(t.Context(), &apiv1.ListCleanupsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list.GetCleanups() {
				if c.GetSubject() == attempt {
					return c
				}
			}
			return nil
		}
		w.eventually("the debt is shown with its tries", func() bool { debt = shown(); return debt.GetTries() > 1 })
		if debt.GetKind() != "attempt" || !strings.Contains(debt.GetEvidence(), "has not reported the end") || debt.GetSince() == nil {
			t.Errorf("%v", debt)
		}
		w.connect(m) // which no longer names it
		w.eventually("the debt is paid", func() bool { return shown() == nil })
	})
}

func nextOffer(t *testing.T, mail <-chan *runnerv1.AttachResponse) *runnerv1.AttachResponse {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case m := <-mail:
			if m.GetOffer() != nil {
				return m
			}
		case <-limit:
			t.Fatal("no offer came")
		}
	}
}

// report ends a device action with an output.
func report(t *testing.T, m *machine, attempt string, fence, epoch int64, output string) {
	t.Helper()
	_, err := m.api.Report(t.Context(), &runnerv1.ReportRequest{
		AttemptId: attempt, Fence: fence, Epoch: epoch,
		Records: []*runnerv1.Record{
			{Seq: 1, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}},
			{Seq: 2, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "succeeded", Output: output}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// feedAs is the service of brokers, for a peer of a role.
func (w *world) feedAs(role identity.Role) brokerv1connect.FeedServiceClient {
	w.t.Helper()
	leaf, err := w.broker.Root.Leaf(role, "brk_second", "", 24*time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := link.NewClient(link.Config{
		Address: runnerAddr, Network: w.net.Network(), Trust: link.Trust{Role: identity.RoleServer, Root: w.broker.Root.Cert},
		Certificate: func() (*tls.Certificate, error) { return leaf, nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return brokerv1connect.NewFeedServiceClient(c, c.URL())
}

// listen opens a feed as a peer of a role and reads it into a channel.
func (w *world) listen(role identity.Role, cursor int64) (feed <-chan *brokerv1.FeedResponse, end <-chan error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	out, over := make(chan *brokerv1.FeedResponse, 10_000), make(chan error, 1)
	stream, err := w.feedAs(role).Feed(ctx, &brokerv1.FeedRequest{Cursor: cursor})
	if err != nil {
		over <- protocol.FromConnect(err)
		return out, over
	}
	go func() {
		for stream.Receive() {
			out <- stream.Msg()
		}
		over <- protocol.FromConnect(stream.Err())
		stream.Close()
	}()
	return out, over
}

// INV-13: a broker says which grants ended at its authority, and they end here, with
// a receipt; one that is not stored is not settled.
func TestGrantsThatEndedAtTheAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		made, err := alice.Grants.CreateGrant(t.Context(), &apiv1.CreateGrantRequest{Agent: "clerk"})
		if err != nil {
			t.Fatal(err)
		}
		id, other := made.GetGrant().GetId(), "grt_01h00000000000000000000000"
		report := &brokerv1.ReportEndedRequest{Grants: []*brokerv1.EndedGrant{
			{GrantId: id, SeenUs: time.Now().UnixMicro(), How: "its token was revoked\u202e"}, {GrantId: other, How: "its token was revoked"}}}
		if _, err := w.feedAs(identity.RoleRunner).ReportEnded(t.Context(), report); codeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("a runner reports: %v", err)
		}
		out, err := w.feedAs(identity.RoleBroker).ReportEnded(t.Context(), report)
		if err != nil || len(out.GetSettled()) != 1 || out.GetSettled()[0] != id {
			t.Fatalf("settled %v, %v", out.GetSettled(), err)
		}
		shown, err := alice.Grants.GetGrant(t.Context(), &apiv1.GetGrantRequest{GrantId: id})
		if err != nil {
			t.Fatal(err)
		}
		if g := shown.GetGrant(); g.GetState() != "REVOKED" || g.GetRevokedWhy() != `it ended at the authority: its token was revoked\u202e` || shown.GetReceipt() == "" {
			t.Errorf("%v, receipt %q", g, shown.GetReceipt())
		}
		many := &brokerv1.ReportEndedRequest{Grants: make([]*brokerv1.EndedGrant, 257)}
		if _, err := w.feedAs(identity.RoleBroker).ReportEnded(t.Context(), many); codeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("too many at once: %v", err)
		}
	})
}

func drain(feed <-chan *brokerv1.FeedResponse) (all []*brokerv1.FeedResponse) {
	for len(feed) > 0 {
		all = append(all, <-feed)
	}
	return all
}

func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		gone := func() string {
			w.t.Helper()
			_, p := w.add(alice, "", "user-"+strings.ToLower(time.Now().Format("150405.000")), false)
			if _, err := alice.Principals.DisablePrincipal(t.Context(), &apiv1.DisablePrincipalRequest{PrincipalId: p.GetId()}); err != nil {
				t.Fatal(err)
			}
			return p.GetId()
		}
		early := gone()
		feed, _ := w.listen(identity.RoleBroker, 0)
		time.Sleep(10 * time.Second)
		all := drain(feed)
		if !all[0].GetSnapshot() || len(all[0].GetSigningStatements()) == 0 || !names(all[0], early) {
			t.Errorf("the first message is no snapshot: %v", all[0])
		}
		if n := len(all); n < 40 || n > 42 { // one each 250 ms
			t.Errorf("%d messages in 10 s", n)
		}
		for i := 1; i < len(all); i++ {
			age := time.Now().UnixMicro() - all[i].GetStoreReadUs()
			if all[i].GetSnapshot() || all[i].GetStoreReadUs() <= all[i-1].GetStoreReadUs() || age < 0 {
				t.Fatalf("message %d: %v after %v", i, all[i], all[i-1])
			}
		}
		cursor := all[len(all)-1].GetCursor()

		// A delta is there at once, not at the next beat.
		before := time.Now()
		late := gone()
		for len(feed) == 0 || !names(all[len(all)-1], late) {
			all = append(all, <-feed)
			if names(all[len(all)-1], late) {
				break
			}
		}
		if took := time.Since(before); took > 250*time.Millisecond {
			t.Errorf("the delta took %s", took)
		}

		// A cursor resumes: only what is new. A cursor of a rewound copy does not.
		resumed, _ := w.listen(identity.RoleBroker, cursor)
		ahead, _ := w.listen(identity.RoleBroker, cursor+1000)
		time.Sleep(time.Second)
		if first := drain(resumed)[0]; first.GetSnapshot() || !names(first, late) || names(first, early) {
			t.Errorf("resumed with %v", first)
		}
		if first := drain(ahead)[0]; !first.GetSnapshot() || !names(first, early) {
			t.Errorf("a cursor that was never given: %v", first)
		}
		for _, role := range []identity.Role{identity.RoleRunner, identity.RoleServer} {
			_, end := w.listen(role, 0)
			if err := <-end; protocol.CodeOf(err) != protocol.CodePermissionDenied {
				t.Errorf("a %s reads the feed: %v", role, err)
			}
		}
	})
}

func names(m *brokerv1.FeedResponse, id string) bool {
	for _, f := range m.GetFloors() {
		if f.GetId() == id {
			return true
		}
	}
	return false
}
