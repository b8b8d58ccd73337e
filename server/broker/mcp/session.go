package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/edge/protocol"
	"bivouac/server/broker/gateway"
)

// Session is one conversation with a server: shaken hands, tools listed, and at most
// one call.
type Session struct {
	e      *Endpoint
	wire   *wire
	client *sdk.ClientSession
	offers []Offer
}

const (
	// maxPages of a list.
	maxPages = 64
	// maxCursor in bytes.
	maxCursor = 4 << 10
	// maxListings of one call: a server that says that its tools changed is asked
	// again, and not for ever.
	maxListings = 3
)

// Open shakes hands and lists the tools. Its errors say that nothing was called.
func (e *Endpoint) Open(ctx context.Context, a Access) (*Session, error) {
	for range maxListings {
		s, err := e.open(ctx, a)
		if another, ok := a.renewed(ctx, err); ok {
			a = another
			s, err = e.open(ctx, a)
		}
		if err != nil {
			return nil, e.before(ctx, err)
		}
		if !s.wire.moved() {
			return s, nil
		}
		s.Close(ctx)
	}
	return nil, &gateway.NotSent{Err: protocol.Errorf(protocol.CodeUnavailable,
		"the MCP server of destination %s changed its tools each time they were listed: it was not called", e.cfg.Name)}
}

// renewed is the access with another credential, once, where the server refused the one
// it has. Nothing was called yet, so that the class of the call does not matter.
func (a Access) renewed(ctx context.Context, err error) (Access, bool) {
	var s *statusError
	if a.RenewFunc == nil || !errors.As(err, &s) || s.status != http.StatusUnauthorized {
		return a, false
	}
	v, before, err := a.RenewFunc(ctx)
	if err != nil || v.IsZero() || v == a.Credential {
		return a, false
	}
	a.Before, a.Credential, a.RenewFunc = append(append(before, a.Before...), a.Credential), v, nil
	return a, true
}

func (e *Endpoint) open(ctx context.Context, a Access) (*Session, error) {
	s := &Session{e: e, wire: newWire(e, a)}
	if e.runner != nil {
		var err error
		if s.wire.local, err = e.runner.start(ctx, e.cfg.Bounds.MaxAnswer, e.cfg.Bounds.Timeout); err != nil {
			return nil, err
		}
	}
	// No capability is advertised: there is nothing that a server may ask for. Input
	// that a server wants in the middle of a call would be a second sending of it.
	client := sdk.NewClient(&sdk.Implementation{Name: "bivouac", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true}, Logger: slog.New(slog.DiscardHandler),
	})
	var err error
	err = contained(func() (err error) { s.client, err = client.Connect(ctx, s.wire, nil); return err })
	if err != nil {
		s.wire.Close()
		return nil, s.why(err)
	}
	if s.offers, err = s.list(ctx); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// contained is what the SDK does with a server's words while we wait: the wire reads
// them in Write and the SDK decodes results, both on the goroutine that asked, and a
// panic there does not end the broker. One on the SDK's own goroutine would: that one
// is given responses alone, to requests of ours, made by the wire, and hands them over
// unread.
func contained(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = violated("its answer cannot be read")
		}
	}()
	return f()
}

// why prefers what the wire saw over what the SDK made of it.
func (s *Session) why(err error) error {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	if s.wire.failure != nil {
		return s.wire.failure
	}
	var no *jsonrpc.Error
	if errors.As(err, &no) {
		return violated("it answered with error %d: %s", no.Code, no.Message)
	}
	return violated("%s", s.wire.words(err.Error()))
}

// list reads every page: a tool that stands twice must be seen twice.
func (s *Session) list(ctx context.Context) ([]Offer, error) {
	var out []Offer
	bytes, cursor, seen := 0, "", map[string]bool{}
	for range maxPages {
		err := contained(func() error { _, err := s.client.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor}); return err })
		if err != nil {
			return nil, s.why(err)
		}
		raw := s.wire.result()
		p, err := readPage(raw)
		if err != nil {
			return nil, err
		}
		for _, t := range p.Tools {
			out = append(out, s.wire.shownOffer(s.e.cfg.Bounds.offer(t)))
		}
		bytes += len(raw)
		switch next := p.Cursor; {
		case len(out) > s.e.cfg.Bounds.MaxTools:
			return nil, violated("it offers more than %d tools: max_tools in broker.hcl", s.e.cfg.Bounds.MaxTools)
		case bytes > s.e.cfg.Bounds.MaxAnswer:
			return nil, violated("its list of tools has more than %d bytes: max_answer_kib in broker.hcl", s.e.cfg.Bounds.MaxAnswer)
		case next == "":
			return once(out), nil
		case len(next) > maxCursor:
			return nil, violated("a cursor of its list has %d bytes", len(next))
		case seen[next]:
			return nil, violated("its list of tools leads in a circle")
		default:
			seen[next], cursor = true, next
		}
	}
	return nil, violated("its list of tools has more than %d pages", maxPages)
}

// once marks what stands more than once: nobody could say which is called.
func once(all []Offer) []Offer {
	count := map[string]int{}
	for _, o := range all {
		count[o.Name]++
	}
	for i := range all {
		if n := count[all[i].Name]; n > 1 {
			all[i].Problem = fmt.Sprintf("the server lists it %d times", n)
		}
	}
	return all
}

// Offers of the server, as they were listed.
func (s *Session) Offers() []Offer { return s.offers }

// About the server, in its own words, and the version that is spoken.
func (s *Session) About() (name, version, spoken string) {
	r := s.client.InitializeResult()
	if r == nil {
		return "", "", ""
	}
	if r.ServerInfo != nil {
		name, version = s.wire.words(r.ServerInfo.Name), s.wire.words(r.ServerInfo.Version)
	}
	return name, version, r.ProtocolVersion
}

// Close ends the session: with a word to the server while ctx lasts, and without
// one when the authority for it has ended.
func (s *Session) Close(ctx context.Context) {
	s.wire.end(ctx)
	s.wire.Close()
	_ = s.client.Close() // nothing is sent any more
}

// moved reports that the server said its tools changed.
func (w *wire) moved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// result of the last answered request, as it came.
func (w *wire) result() json.RawMessage {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// shownOffer is an offer that may be shown: one that repeats the credential has a
// problem instead. INV-17.
func (w *wire) shownOffer(o Offer) Offer {
	o.Description = w.cut(o.Description, maxDescription)
	if w.shows(o.Name) || w.shows(o.Schema) {
		o.Name, o.Schema, o.Digest, o.Problem = w.words(o.Name), "", "", "it repeats the credential that the broker sent"
	}
	return o
}
