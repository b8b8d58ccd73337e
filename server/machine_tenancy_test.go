package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// smith is an agent whose whole turn is leased to a machine.
const smith = `
agent "smith" {
  profile       = "coding"
  data_boundary = "code"
  instructions  = "Mend what is broken."
  trust         = "trusted"
  model { route = "test" }
  sandbox_tools = ["read", "write"]
}
`

// work is one attempt as a machine names it.
type work struct {
	attempt, workspace, patch string
	fence, epoch              int64
}

// machineCrossing is a method for machines as one of them calls it about work.
type machineCrossing struct {
	method string
	call   func(context.Context, *machine, work) error
	// own: the request names nothing but the caller's own connection.
	own bool
}

// machineCrossings has one row a method; a test holds it against the descriptors.
var machineCrossings = []machineCrossing{
	{method: "RunnerService.Enroll", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.Enroll(ctx, &runnerv1.EnrollRequest{Code: "join_x"})
		if codeOf(err) != protocol.CodeFailedPrecondition {
			return errors.Join(errors.New("an enrolled machine enrolled"), err)
		}
		return nil
	}},
	{method: "RunnerService.RenewCertificate", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.RenewCertificate(ctx, &runnerv1.RenewCertificateRequest{})
		return err
	}},
	{method: "RunnerService.RecoverChallenge", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.RecoverChallenge(ctx, &runnerv1.RecoverChallengeRequest{})
		if codeOf(err) != protocol.CodeFailedPrecondition {
			return errors.Join(errors.New("a machine with a certificate in force recovers"), err)
		}
		return nil
	}},
	{method: "RunnerService.Recover", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.Recover(ctx, &runnerv1.RecoverRequest{})
		if codeOf(err) != protocol.CodeFailedPrecondition {
			return errors.Join(errors.New("a machine with a certificate in force recovers"), err)
		}
		return nil
	}},
	{method: "RunnerService.Connect", own: true, call: func(ctx context.Context, m *machine, w work) error {
		// The highest epoch belongs to the caller's own row, not to one it names.
		res, err := m.api.Connect(ctx, &runnerv1.ConnectRequest{
			CapabilityVersion: 1, OldestCapabilityVersion: 1, BootNonce: "boot", LastEpoch: w.epoch, Facts: ableFacts(),
			Held: []*runnerv1.HeldLease{{AttemptId: w.attempt, Fence: w.fence}},
		})
		if err != nil {
			return err
		}
		m.epoch = res.GetEpoch()
		return nil
	}},
	{method: "RunnerService.Attach", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := m.api.Attach(ctx, &runnerv1.AttachRequest{Epoch: m.epoch})
		if err != nil {
			return err
		}
		defer stream.Close()
		if !stream.Receive() {
			return stream.Err()
		}
		return nil
	}},
	{method: "RunnerService.Acknowledge", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.Acknowledge(ctx, &runnerv1.AcknowledgeRequest{Epoch: m.epoch, Seq: m.seen})
		return err
	}},
	{method: "RunnerService.Announce", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.Announce(ctx, &runnerv1.AnnounceRequest{Epoch: m.epoch, Facts: ableFacts()})
		return err
	}},
	{method: "RunnerService.Claim", call: func(ctx context.Context, m *machine, w work) error {
		_, err := m.api.Claim(ctx, &runnerv1.ClaimRequest{AttemptId: w.attempt, Epoch: m.epoch, BootNonce: "n1"})
		return err
	}},
	{method: "RunnerService.Renew", call: func(ctx context.Context, m *machine, w work) error {
		res, err := m.api.Renew(ctx, &runnerv1.RenewRequest{Epoch: m.epoch, Leases: []*runnerv1.HeldLease{{AttemptId: w.attempt, Fence: w.fence}}})
		if err != nil {
			return err
		}
		for _, v := range res.GetLeases() {
			if v.GetAttemptId() == w.attempt && v.GetAlive() {
				return nil
			}
		}
		return protocol.Errorf(protocol.CodeNotFound, "the lease is lost")
	}},
	{method: "RunnerService.Report", call: func(ctx context.Context, m *machine, w work) error {
		_, err := m.api.Report(ctx, &runnerv1.ReportRequest{AttemptId: w.attempt, Fence: w.fence, Epoch: m.epoch, Records: []*runnerv1.Record{
			{Seq: 1, AtUs: 1, Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{Boundary: "process"}}},
		}})
		return err
	}},
	{method: "RunnerService.Live", call: func(ctx context.Context, m *machine, w work) error {
		_, err := m.api.Live(ctx, &runnerv1.LiveRequest{AttemptId: w.attempt, Fence: w.fence, TextDelta: canary})
		return err
	}},
	{method: "RunnerService.PutBlob", call: func(ctx context.Context, m *machine, w work) error {
		stream, err := m.api.PutBlob(ctx)
		if err != nil {
			return err
		}
		first := &runnerv1.PutBlobRequest{AttemptId: w.attempt, Fence: w.fence, Digest: w.patch, Size: int64(len(canary)), Chunk: []byte(canary)}
		if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.CloseAndReceive()
		return err
	}},
	{method: "RunnerService.GetBlob", call: func(ctx context.Context, m *machine, w work) error {
		stream, err := m.api.GetBlob(ctx, &runnerv1.GetBlobRequest{AttemptId: w.attempt, Fence: w.fence, Digest: w.workspace})
		if err != nil {
			return err
		}
		defer stream.Close()
		var content []byte
		for stream.Receive() {
			content = append(content, stream.Msg().GetChunk()...)
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if string(content) != canary {
			return errors.New("another content: " + string(content))
		}
		return nil
	}},
	{method: "RunnerService.Decline", call: func(ctx context.Context, m *machine, w work) error {
		_, err := m.api.Decline(ctx, &runnerv1.DeclineRequest{AttemptId: w.attempt, Epoch: m.epoch, Reason: "busy"})
		return err
	}},
	{method: "FeedService.Feed", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		stream, err := brokerv1connect.NewFeedServiceClient(m.link, m.link.URL()).Feed(ctx, &brokerv1.FeedRequest{})
		if err == nil {
			stream.Receive()
			err = stream.Err()
			stream.Close()
		}
		if codeOf(err) != protocol.CodePermissionDenied {
			return errors.Join(errors.New("a runner reads the feed"), err)
		}
		return nil
	}},
	{method: "FeedService.ReportEnded", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := brokerv1connect.NewFeedServiceClient(m.link, m.link.URL()).ReportEnded(ctx, &brokerv1.ReportEndedRequest{})
		if codeOf(err) != protocol.CodePermissionDenied {
			return errors.Join(errors.New("a runner says which grants ended"), err)
		}
		return nil
	}},
	{method: "RunnerService.Leave", own: true, call: func(ctx context.Context, m *machine, _ work) error {
		_, err := m.api.Leave(ctx, &runnerv1.LeaveRequest{})
		return err
	}},
}

func ableFacts() *runnerv1.Facts {
	return &runnerv1.Facts{Os: "linux", Arch: "amd64", Slots: 4, Boundary: "process", Limits: "cgroup",
		Actions: []string{"files.read"}, Adapters: []string{"native"}, Harnesses: []*runnerv1.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}}
}

func TestEveryMachineMethodHasACrossing(t *testing.T) {
	rows := func(service string) func(func(string) bool) {
		return func(yield func(string) bool) {
			for _, c := range machineCrossings {
				if strings.HasPrefix(c.method, service) && !yield(c.method) {
					return
				}
			}
		}
	}
	checkTotal(t, runnerv1.File_bivouac_runner_v1_runner_proto.Services(), rows("RunnerService."))
	feed := brokerv1.File_bivouac_broker_v1_broker_proto.Services().ByName("FeedService")
	for i := range feed.Methods().Len() {
		found := false
		for name := range rows("FeedService.") {
			found = found || name == "FeedService."+string(feed.Methods().Get(i).Name())
		}
		if !found {
			t.Errorf("FeedService.%s has no row", feed.Methods().Get(i).Name())
		}
	}
}

// INV-9 for machines: another tenant's runner, and another runner of the same
// tenant, get for somebody's attempt what they get for none.
func TestMachinesOfTwoTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		operator := w.as(w.token)
		owner, _ := w.add(operator, "home", "owner", true)
		mallory, _ := w.add(operator, "away", "mallory", true)
		w.apply(owner, smith)
		digest, _, err := owner.PutArtifact(t.Context(), "workspace", strings.NewReader(canary))
		if err != nil {
			t.Fatal(err)
		}
		mine := w.able(owner, "mine")
		mail, _ := w.attach(mine, mine.epoch, 0)
		session := w.open(owner, "smith")
		w.submitWith(owner, session, "m1", "mend it", digest)
		offer := nextOffer(t, mail)
		// Those that come later have no part in it.
		neighbour, foreign := w.able(owner, "neighbour"), w.able(mallory, "foreign")

		sum := sha256.Sum256([]byte(canary))
		job := work{attempt: offer.GetOffer().GetAttemptId(), workspace: digest, patch: "sha256:" + hex.EncodeToString(sum[:]), fence: 1<<32 | 1, epoch: mine.epoch}
		cross := func() {
			for _, c := range machineCrossings {
				for who, m := range map[string]*machine{"another tenant's runner": foreign, "a neighbour": neighbour} {
					w.crossMachine(c, who, m, job)
				}
			}
		}
		cross()
		claim, err := mine.api.Claim(t.Context(), &runnerv1.ClaimRequest{AttemptId: job.attempt, Epoch: mine.epoch, BootNonce: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		job.fence = claim.GetTerms().GetFence()
		neighbour, foreign = w.able(owner, "neighbour-2"), w.able(mallory, "foreign-2")
		cross()
		for _, c := range machineCrossings {
			j := job
			if strings.HasSuffix(c.method, ".Decline") { // of another offer: this one is claimed
				second := w.open(owner, "smith")
				w.submitWith(owner, second, "m1", "mend it", digest)
				mine.epoch = w.connectAble(mine)
				mail, _ = w.attach(mine, mine.epoch, 0)
				for j.attempt == job.attempt {
					j.attempt = nextOffer(t, mail).GetOffer().GetAttemptId()
				}
			}
			if err := c.call(t.Context(), mine, j); err != nil {
				t.Errorf("%s: the rightful runner is refused: %v", c.method, protocol.FromConnect(err))
			}
		}
	})
}

func (w *world) crossMachine(c machineCrossing, who string, m *machine, job work) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	err := c.call(ctx, m, job)
	if c.own {
		if err != nil {
			w.t.Errorf("%s by %s in its own world: %v", c.method, who, protocol.FromConnect(err))
		}
		return
	}
	nothing := job
	nothing.attempt = "att_01aaaaaaaaaaaaaaaaaaaaaaaa"
	none := c.call(ctx, m, nothing)
	if err == nil || none == nil {
		w.t.Errorf("%s answered %s: %v, %v", c.method, who, err, none)
		return
	}
	blind := func(err error, id string) string {
		return string(codeOf(err)) + ": " + strings.ReplaceAll(protocol.FromConnect(err).Error(), id, "…")
	}
	if got, want := blind(err, job.attempt), blind(none, nothing.attempt); got != want {
		w.t.Errorf("%s tells %s that it exists:\n  another's: %s\n  absent:    %s", c.method, who, got, want)
	}
	if code := codeOf(err); code != protocol.CodeNotFound && code != protocol.CodeStaleFence {
		w.t.Errorf("%s by %s: %v", c.method, who, protocol.FromConnect(err))
	}
}
