package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
)

const metricsAddr = "metrics:7409"

// page is the whole page of numbers.
func (w *world) page() string {
	w.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.net.Dial(ctx, metricsAddr) }}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get("http://metrics/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		w.t.Fatalf("%s, %v: %s", res.Status, err, b)
	}
	return string(b)
}

// number of a series; absent is a failure.
func number(t *testing.T, page, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Errorf("the page has no %s", series)
		return -1
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Error(err)
	}
	return n
}

// clumsy is obedient's model, that also calls tools wrongly.
func clumsy(w *world) {
	obedient(w)
	good := w.broker.Backend.CallModel
	w.broker.Backend.CallModel = func(ctx context.Context, r *brokerv1.CallModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
		messages := r.GetRequest().GetMessages()
		last := messages[len(messages)-1]
		block := last.GetBlocks()[len(last.GetBlocks())-1]
		if strings.HasPrefix(block.GetText(), "read ") {
			return readsAndRepeats(ctx, r, delta)
		}
		if last.GetRole() != runtimev1.Role_ROLE_USER || !strings.HasPrefix(block.GetText(), "fumble") {
			return good(ctx, r, delta)
		}
		m := answer(runtimev1.StopReason_STOP_REASON_TOOL_CALLS, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
			Id: "c1", Alias: canary, Arguments: `{}`}}})
		m.Message.Blocks = append(m.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
			Id: "c2", Alias: "order", Arguments: `{"` + canary + `":1}`}}})
		return m, nil
	}
}

// Everything that is counted is made to happen, and the page says so; what
// models and people said is not on it.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t)
		w.config.MetricsListener = w.net.Listen(metricsAddr)
		w.startBroker()
		w.startServer()
		w.startFeed()
		w.awaitReady()
		clumsy(w)
		alice := w.as(w.token)
		before := w.page()
		for _, zero := range []string{
			`bivouac_queue_wait_seconds_count`, `bivouac_approval_wait_seconds_count`, `bivouac_projection_lag_seconds_count`,
			`bivouac_activations_total{result="ok"}`, `bivouac_activations_total{result="conflict"}`,
			`bivouac_tool_calls_refused_total{why="name"}`, `bivouac_tool_calls_refused_total{why="schema"}`,
			`bivouac_capabilities_total{code="ok"}`, `bivouac_capabilities_total{code="permission_denied"}`,
			`bivouac_unknown_outcomes_total{kind="action"}`, `bivouac_approvals_total{state="DENIED"}`,
			`bivouac_queue_depth{kind="turn"}`, `bivouac_queue_depth{kind="attempt"}`, `bivouac_approvals_pending`,
			`bivouac_unknown_unresolved`, `bivouac_cleanup_debt`, `bivouac_runner_links{transport="http/2"}`,
		} {
			if n := number(t, before, zero); n != 0 {
				t.Errorf("%s is %v before anything happened", zero, n)
			}
		}

		w.apply(alice, clerk)
		w.apply(alice, reader)
		session := w.open(alice, "clerk")
		watched := make(chan error, 1)
		go func() { // a reader who has seen all before it
			_, _, err := w.watchUntil(w.token, session, 0, func(m *apiv1.WatchEventsResponse) bool { return m.GetEvent().GetType() == "turn.ended" })
			watched <- err
		}()
		synctest.Wait()
		w.awaitTurn(alice, w.submit(alice, session, "m1", "fumble "+canary).GetId(), "COMPLETED")
		if err := <-watched; err != nil {
			t.Fatal(err)
		}
		w.awaitTurn(alice, w.submit(alice, session, "m2", "post "+canary).GetId(), "UNKNOWN")
		asks := w.submit(alice, session, "m3", "order "+canary).GetId()
		w.submit(alice, session, "m4", "waits")
		w.awaitTurn(alice, asks, "WAITING_APPROVAL")
		time.Sleep(7 * time.Second)
		page := w.page()
		for series, want := range map[string]float64{
			`bivouac_tool_calls_refused_total{why="name"}`: 1, `bivouac_tool_calls_refused_total{why="schema"}`: 1,
			`bivouac_unknown_outcomes_total{kind="action"}`: 1, `bivouac_unknown_unresolved`: 1,
			`bivouac_approvals_pending`: 1, `bivouac_queue_depth{kind="turn"}`: 1, `bivouac_activations_total{result="ok"}`: 3,
			`bivouac_queue_wait_seconds_count`: 3, `bivouac_readable{part="store"}`: 1,
		} {
			if got := number(t, page, series); got != want {
				t.Errorf("%s is %v, want %v", series, got, want)
			}
		}
		for _, some := range []string{`bivouac_capabilities_total{code="ok"}`, `bivouac_projection_lag_seconds_count`} {
			if number(t, page, some) < 1 {
				t.Errorf("%s is zero", some)
			}
		}
		if age := number(t, page, `bivouac_feed_age_seconds`); age < 0 || age > 2 {
			t.Errorf("the feed is %v s old", age)
		}
		if oldest := number(t, page, `bivouac_queue_oldest_seconds`); oldest < 7 || oldest > 60 {
			t.Errorf("the oldest queued turn waits %v s", oldest)
		}

		list, err := alice.Approvals.ListApprovals(t.Context(), &apiv1.ListApprovalsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ap := list.GetApprovals()[0]
		if _, err := alice.Approvals.DecideApproval(t.Context(), &apiv1.DecideApprovalRequest{ApprovalId: ap.GetId(), Digest: ap.GetDigest(), Reason: canary}); err != nil {
			t.Fatal(err)
		}
		w.owes()
		page = w.page()
		for _, some := range []string{
			`bivouac_approvals_total{state="DENIED"}`, `bivouac_approval_wait_seconds_count`, `bivouac_cleanup_debt`,
			`bivouac_runner_links{transport="http/2"}`,
		} {
			if number(t, page, some) < 1 {
				t.Errorf("%s is zero", some)
			}
		}
		if wait := number(t, page, `bivouac_approval_wait_seconds_sum`); wait < 7 {
			t.Errorf("the approval waited %v s", wait)
		}
		// What both listeners carried, by method; a path that is none adds no series.
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.net.Dial(ctx, publicAddr) }}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Post("http://server/made/up/"+canary, "text/plain", strings.NewReader("12345"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		page = w.page()
		for _, some := range []string{
			`bivouac_public_received_bytes{method="SubmitTurn"}`, `bivouac_public_sent_bytes{method="SubmitTurn"}`, `bivouac_public_sent_bytes{method="WatchEvents"}`,
			`bivouac_public_sent_bytes{method="other"}`, `bivouac_machines_sent_bytes{method="Feed"}`, `bivouac_machines_streams_open{method="Feed"}`,
		} {
			if number(t, page, some) < 1 {
				t.Errorf("%s is zero", some)
			}
		}
		for _, none := range []string{`bivouac_machines_sent_bytes{method="Leave"}`, `bivouac_public_streams_open{method="SubmitTurn"}`} {
			if number(t, page, none) != 0 {
				t.Errorf("%s is not zero", none)
			}
		}
		if strings.Contains(page, canary) || strings.Contains(page, "alice") || strings.Contains(page, w.token) {
			t.Error("the page says what somebody said, or who")
		}
	})
}

// owes leaves an attempt whose machine fell silent.
func (w *world) owes() {
	w.t.Helper()
	alice := w.as(w.token)
	m := w.join(alice, "laptop", "files.read")
	epoch := w.connect(m)
	mail, _ := w.attach(m, epoch, 0)
	turn := w.submit(alice, w.open(alice, "reader"), "m1", "read notes/a.txt")
	attempt := nextOffer(w.t, mail).GetOffer().GetAttemptId()
	if _, err := m.api.Claim(w.t.Context(), &runnerv1.ClaimRequest{AttemptId: attempt, Epoch: epoch, BootNonce: "n1"}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := alice.Turns.CancelTurn(w.t.Context(), &apiv1.CancelTurnRequest{TurnId: turn.GetId()}); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("there is a debt", func() bool {
		list, err := alice.Runners.ListCleanups(w.t.Context(), &apiv1.ListCleanupsRequest{})
		return err == nil && strings.Contains(list.String(), attempt)
	})
}
