package trace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

const (
	// queueSize turns wait for their export; further ones are not exported.
	queueSize = 256
	// maxEvents of one turn are shown.
	maxEvents = 2000
	// sendTimeout bounds one request, tries how often it is made.
	sendTimeout = 10 * time.Second
	tries       = 3
	// path of OTLP over HTTP, where the endpoint names none.
	path = "/v1/traces"
)

// Config of an exporter. Store, Endpoint and Version are required.
type Config struct {
	Store *store.Store
	// Endpoint of a collector that speaks OTLP over HTTP, such as
	// http://127.0.0.1:4318; its path is /v1/traces unless it has one.
	Endpoint string
	Version  string
	Client   *http.Client // nil: the default one
	Log      *slog.Logger
}

// Exporter sends the traces of turns that have ended.
type Exporter struct {
	cfg   Config
	url   string
	turns chan protocol.TurnID
}

// CheckEndpoint refuses what is no collector's address.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no address of a collector: write it as http://127.0.0.1:4318, without a password", endpoint)
	}
	return nil
}

// New exporter; it starts nothing.
func New(c Config) (*Exporter, error) {
	if err := CheckEndpoint(c.Endpoint); err != nil {
		return nil, err
	}
	if c.Client == nil {
		c.Client = http.DefaultClient
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	u := strings.TrimSuffix(c.Endpoint, "/")
	if p, _ := url.Parse(u); p.Path == "" {
		u += path
	}
	return &Exporter{cfg: c, url: u, turns: make(chan protocol.TurnID, queueSize)}, nil
}

// Ended notes a turn whose trace can be sent. It does not wait: what finds the
// queue full is not traced.
func (x *Exporter) Ended(id protocol.TurnID) {
	select {
	case x.turns <- id:
	default:
		x.cfg.Log.Debug("a turn is not traced: the collector is slower than the turns", "turn", id)
	}
}

// Run sends until ctx ends.
func (x *Exporter) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-x.turns:
			if err := x.export(ctx, id); err != nil && ctx.Err() == nil {
				x.cfg.Log.Warn("a turn's trace was not taken; check trace.endpoint and the collector", "turn", id, "error", err)
			}
		}
	}
}

func (x *Exporter) export(ctx context.Context, id protocol.TurnID) error {
	var t session.Turn
	var events []session.Stored
	err := x.cfg.Store.View(ctx, store.AsLoop("trace"), func(tx *store.Tx) (err error) {
		events = nil
		if t, err = tx.Turn(id); err != nil {
			return err
		}
		for after := int64(0); len(events) < maxEvents; {
			page, err := tx.EventsOfTurn(id, after, 0)
			if err != nil || len(page) == 0 {
				return err
			}
			events, after = append(events, page...), page[len(page)-1].Seq
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c, ok := Parse(t.TraceParent); ok && c.Flags&sampled == 0 {
		return nil // its caller does not want it recorded
	}
	body, err := proto.Marshal(x.request(Spans(t, events)))
	if err != nil {
		return err
	}
	return x.send(ctx, body)
}

// request is the body of an OTLP export: TracesData has the same one field as
// ExportTraceServiceRequest, whose package would bring gRPC along.
func (x *Exporter) request(spans []*tracepb.Span) *tracepb.TracesData {
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource:   &resourcepb.Resource{Attributes: []*commonpb.KeyValue{attr("service.name", "bivouac-server"), attr("service.version", x.cfg.Version)}},
		ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: "bivouac"}, Spans: spans}},
	}}}
}

// send posts once more where the collector says that this may help.
func (x *Exporter) send(ctx context.Context, body []byte) (err error) {
	for n := range tries {
		if n > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second << n):
			}
		}
		again := false
		if again, err = x.post(ctx, body); err == nil || !again {
			return err
		}
	}
	return err
}

func (x *Exporter) post(ctx context.Context, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	res, err := x.cfg.Client.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection serves again
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, fmt.Errorf("the collector answers %s", res.Status)
}
