package trace

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"bivouac/server/session"
)

// Spans of one ended turn. The root is the turn, a child of the caller's span
// where it gave one; its children are what the turn waited for and did.
func Spans(t session.Turn, events []session.Stored) []*tracepb.Span {
	b := &builder{turn: t, at: Of(t.ID.String(), t.TraceParent), open: map[string]*tracepb.Span{}}
	root := b.begin("turn", "turn", t.QueuedAt, tracepb.Span_SPAN_KIND_SERVER)
	if c, ok := Parse(t.TraceParent); ok {
		root.ParentSpanId = c.Parent[:]
	} else {
		root.ParentSpanId = nil
	}
	root.Attributes = append(root.Attributes, attr("bivouac.session", t.Session.String()), attr("bivouac.tenant", t.Tenant.String()),
		attr("bivouac.placement", string(t.Placement)), attr("bivouac.state", string(t.State)), attr("bivouac.reason", t.Reason),
		number("gen_ai.usage.input_tokens", t.InputTokens), number("gen_ai.usage.output_tokens", t.OutputTokens), number("bivouac.cost_micro_usd", t.CostMicroUSD))
	b.begin("queue", "queue", t.QueuedAt, tracepb.Span_SPAN_KIND_INTERNAL)
	for _, e := range events {
		b.take(e)
	}
	end := t.EndedAt
	for _, s := range b.open { // what no event ended, ended with the turn
		s.EndTimeUnixNano = nano(end)
	}
	root.Status = statusOf(t.State == session.Completed, t.Reason)
	slices.SortStableFunc(b.all, func(x, y *tracepb.Span) int { return cmp.Compare(x.StartTimeUnixNano, y.StartTimeUnixNano) })
	return b.all
}

// builder turns events into spans: some begin one, some end one.
type builder struct {
	turn  session.Turn
	at    Context
	all   []*tracepb.Span
	open  map[string]*tracepb.Span // by what they are about
	calls int
	tools int
}

func (b *builder) begin(key, name string, at time.Time, kind tracepb.Span_SpanKind) *tracepb.Span {
	id := spanID(b.turn.ID.String(), key)
	s := &tracepb.Span{
		TraceId: b.at.Trace[:], SpanId: id[:], ParentSpanId: b.at.Parent[:], Name: name, Kind: kind, Flags: uint32(b.at.Flags),
		StartTimeUnixNano: nano(at), Attributes: []*commonpb.KeyValue{attr("bivouac.turn", b.turn.ID.String())},
	}
	b.all, b.open[key] = append(b.all, s), s
	return s
}

// end closes a span; one that is not open is none.
func (b *builder) end(key string, at time.Time, good bool, reason string) {
	if s := b.open[key]; s != nil {
		s.EndTimeUnixNano, s.Status = nano(at), statusOf(good, reason)
		delete(b.open, key)
	}
}

// take reads one event. Its payload, and what a model or a machine said in its
// data, is never looked at.
func (b *builder) take(e session.Stored) {
	d, tool := e.Data, "tool "+e.Data[session.DataCallID]
	switch e.Type {
	case session.TurnActivated:
		b.end("queue", e.At, true, "")
	case session.ModelCalled:
		b.calls++
		s := b.begin(b.model(), "model", e.At, tracepb.Span_SPAN_KIND_CLIENT)
		s.Attributes = append(s.Attributes, attr("gen_ai.request.model", d["model"]), attr("bivouac.attempt", e.Attempt.String()))
	case session.ModelAnswered:
		b.end(b.model(), e.At, true, "")
	case session.ModelFailed:
		if e.Attempt == "" {
			b.end(b.model(), e.At, false, d["code"])
		} else if s := b.open[b.model()]; s != nil { // a machine's next try is the same call
			s.Events = append(s.Events, &tracepb.Span_Event{TimeUnixNano: nano(e.At), Name: "failed", Attributes: []*commonpb.KeyValue{attr("bivouac.code", d["code"])}})
		}
	case session.ToolRequested:
		b.tools++
		s := b.begin(tool, "tool", e.At, tracepb.Span_SPAN_KIND_INTERNAL)
		id := spanID(b.turn.ID.String(), tool+" "+strconv.Itoa(b.tools)) // call ids are unique in one answer only
		s.SpanId = id[:]
		s.Attributes = append(s.Attributes, attr("bivouac.tool", d["tool"]), attr("bivouac.attempt", e.Attempt.String()))
	case session.ToolDispatched:
		if s := b.open[tool]; s != nil {
			s.Events = append(s.Events, &tracepb.Span_Event{TimeUnixNano: nano(e.At), Name: "dispatched"})
			s.Attributes = append(s.Attributes, attr("bivouac.action", e.Action.String()))
		}
	case session.ToolFinished:
		b.end(tool, e.At, d["status"] == "ok", d["code"])
	case session.ToolUnknown:
		b.end(tool, e.At, false, "outcome_unknown")
	case session.ApprovalAsked:
		s := b.begin("approval "+e.Approval.String(), "approval", e.At, tracepb.Span_SPAN_KIND_INTERNAL)
		s.Attributes = append(s.Attributes, attr("bivouac.approval", e.Approval.String()), attr("bivouac.action", e.Action.String()))
	case session.ApprovalDecided:
		b.end("approval "+e.Approval.String(), e.At, d["state"] == string(session.ApprovalApproved), d["state"])
	case session.AttemptQueued:
		s := b.begin("attempt "+e.Attempt.String(), "attempt", e.At, tracepb.Span_SPAN_KIND_PRODUCER)
		s.Attributes = append(s.Attributes, attr("bivouac.attempt", e.Attempt.String()), attr("bivouac.action", e.Action.String()))
	case session.AttemptClaimed, session.AttemptStarted:
		if s := b.open["attempt "+e.Attempt.String()]; s != nil {
			s.Events = append(s.Events, &tracepb.Span_Event{TimeUnixNano: nano(e.At), Name: string(e.Type),
				Attributes: []*commonpb.KeyValue{attr("bivouac.runner", d["runner"]), attr("bivouac.boundary", d["boundary"])}})
		}
	case session.AttemptEnded:
		b.end("attempt "+e.Attempt.String(), e.At, d["state"] == "SUCCEEDED", d["state"])
	case session.TurnEnded:
		for key := range b.open {
			b.end(key, e.At, b.turn.State == session.Completed, b.turn.Reason)
		}
	}
}

func (b *builder) model() string { return "model " + strconv.Itoa(b.calls) }

// statusOf carries a code or a state, never a message.
func statusOf(good bool, reason string) *tracepb.Status {
	if good {
		return &tracepb.Status{Code: tracepb.Status_STATUS_CODE_OK}
	}
	return &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: word(reason)}
}

// word lets codes, states and names through and nothing that could be a sentence:
// some of them come from a machine.
func word(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.:/-", r))
	}) {
		return "other"
	}
	return s
}

func attr(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: word(value)}}}
}

func number(key string, n int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}}
}

func nano(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) }
