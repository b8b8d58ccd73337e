package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
)

// Ways in which a list goes on.
const (
	ByLink   = "link"   // a Link header with rel="next" (RFC 8288)
	ByCursor = "cursor" // a field of the answer goes into a parameter
	ByNumber = "number" // a parameter counts
)

// Ways of Paging, sorted.
var Ways = []string{ByCursor, ByLink, ByNumber}

// Paging is how a destination divides what it lists.
type Paging struct {
	By string
	// Items is where the list stands in an answer, names from the outside in; empty: the
	// answer is the list.
	Items []string
	// Cursor is where the next page's cursor stands.
	Cursor []string
	// Parameter of the query that a cursor or a number goes into. A request that has it
	// by itself is one page: whoever asks turns the pages.
	Parameter string
	// First is the number of the first page.
	First int
	// MaxPages and MaxBytes of a call, and Timeout of all pages after the first.
	MaxPages, MaxBytes int
	Timeout            time.Duration
}

// maxNext bounds the address of a page.
const maxNext = 4 << 10

// whole follows the pages of an answer and puts them together, for what only reads.
// What is not read is said, and is no failure: the pages that were read are.
func (s *sending) whole(ctx context.Context, first *Answer) (*Answer, error) {
	pg, req := s.r.d.cfg.Paging, s.r.http
	if s.r.class != reads || req.Method != http.MethodGet || first.Status < 200 || first.Status > 299 {
		return first, nil
	}
	if pg == nil || first.Status != http.StatusOK || pg.Parameter != "" && req.URL.Query().Has(pg.Parameter) {
		first.Unread = pg.alone(first, s.r.maxBytes, req.URL)
		return first, nil
	}
	b, err := pg.begin(first, s.r.maxBytes)
	if err != nil {
		first.Unread = pg.unplaced(first, err)
		return first, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pg.Timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the time for pages is over"))
	defer cancel()
	unread, err := s.collect(ctx, pg, b)
	if err != nil {
		return nil, err
	}
	return b.answer(first, unread)
}

// alone says why an answer that is not followed may be a part of what there is; empty:
// nothing says that there is more. INV-5: nobody takes a part for the whole.
func (pg *Paging) alone(a *Answer, limit int, at *url.URL) string {
	const more = "the destination has more pages: this is one"
	switch {
	case a.Status == http.StatusPartialContent:
		return "the destination answered with HTTP 206: this is a part of what it has"
	case a.next != "" || a.hidden:
		return more
	case pg == nil || pg.By == ByLink || a.Status == http.StatusNoContent:
		return ""
	}
	b, err := pg.begin(a, limit)
	if err != nil {
		return pg.unplaced(a, err)
	}
	next, err := pg.next(b, at, at)
	switch {
	case next == nil && err == nil:
		return ""
	case pg.By == ByNumber:
		return "the destination may have more pages: this is one"
	}
	return more
}

// unplaced says what an answer leaves open in which no list stands where the
// destination declares it. Only a link that is not there, or a cursor that is and is
// empty, says that there is no more; without them nobody knows. INV-5.
func (pg *Paging) unplaced(a *Answer, why error) string {
	switch {
	case a.next != "" || a.hidden:
		return "the destination has more pages, which are not put together: " + why.Error()
	case pg.By == ByLink:
		return ""
	}
	if pg.By == ByCursor {
		if _, err := reach(a.Body, pg.Cursor); err == nil {
			if c, err := cursorOf(a.Body, pg.Cursor); err == nil && c == "" {
				return ""
			}
		}
	}
	return "the destination may have more pages: the answer is not divided as items in its pages block of broker.hcl says: " + why.Error()
}

// collect reads page after page. unread says why there may be more.
func (s *sending) collect(ctx context.Context, pg *Paging, b *binder) (unread string, err error) {
	at, seen := s.r.http.URL, map[string]bool{s.r.http.URL.String(): true}
	for {
		if b.full {
			return fmt.Sprintf("page %d is the last that fits into %d bytes", b.pages, b.limit), nil
		}
		next, err := pg.next(b, at, s.r.http.URL)
		switch {
		case err != nil:
			return fmt.Sprintf("the page after page %d is not read: %v", b.pages, err), nil
		case next == nil:
			return "", nil
		case b.pages >= pg.MaxPages:
			return fmt.Sprintf("%d pages were read, which is max_pages of this destination", b.pages), nil
		case seen[next.String()]:
			return "the pages lead in a circle", nil
		}
		if err := s.covers(next); err != nil {
			return fmt.Sprintf("the page after page %d is not read: %v", b.pages, err), nil
		}
		seen[next.String()], at = true, next
		stop, err := s.page(ctx, pg, b, next)
		if stop != "" || err != nil {
			return stop, err
		}
	}
}

// page reads one more page. stop says why it is the end.
func (s *sending) page(ctx context.Context, pg *Paging, b *binder, at *url.URL) (stop string, err error) {
	req := s.r.http.Clone(ctx)
	req.URL = at
	req.Host = at.Host
	if !s.leaves(req) {
		if s.flow.Err() != nil {
			return "", s.r.failed(s.flow, context.Cause(s.flow), true)
		}
		return fmt.Sprintf("page %d may not be asked for: paths refuse %s %s", b.pages+1, req.Method, at.EscapedPath()), nil
	}
	a, err := s.answer(ctx, req)
	switch {
	case s.flow.Err() != nil:
		return "", s.r.failed(s.flow, context.Cause(s.flow), true)
	case err != nil:
		return fmt.Sprintf("page %d did not come: %v", b.pages+1, err), nil
	case a.Status != http.StatusOK:
		return fmt.Sprintf("page %d was answered with HTTP %d", b.pages+1, a.Status), nil
	}
	if b.bytes += a.Bytes; b.bytes > int64(pg.MaxBytes) {
		return fmt.Sprintf("the pages have more than %d bytes, which is max_kib of this destination", pg.MaxBytes), nil
	}
	if err := b.add(a); err != nil {
		return fmt.Sprintf("page %d cannot be put to the others: %v", b.pages+1, err), nil
	}
	return "", nil
}

// covers refuses what is not the destination's own: another origin, another place
// there, or an address that would carry the credential.
func (s *sending) covers(at *url.URL) error {
	base := s.r.d.cfg.Base
	path := strings.TrimSuffix(base.EscapedPath(), "/") + "/"
	switch {
	case at.Scheme != base.Scheme || at.Host != base.Host || at.User != nil:
		return fmt.Errorf("it leads to another place than the destination")
	case len(at.String()) > maxNext || !strings.HasPrefix(at.EscapedPath(), path) || forbiddenEscape.MatchString(at.EscapedPath()) ||
		slices.ContainsFunc(strings.Split(at.Path, "/"), func(p string) bool { return p == "." || p == ".." }):
		return fmt.Errorf("it leads out of the destination")
	case s.redactor().Found(at.String()):
		return fmt.Errorf("it holds the credential")
	}
	return nil
}

// next is the address of the page after the last that was read; nil: there is none.
// at is where that one was.
func (pg *Paging) next(b *binder, at, first *url.URL) (*url.URL, error) {
	value := ""
	switch pg.By {
	case ByLink:
		switch {
		case b.last.hidden:
			return nil, fmt.Errorf("its address holds the credential")
		case b.last.next == "":
			return nil, nil
		}
		u, err := at.Parse(b.last.next)
		if err != nil {
			return nil, fmt.Errorf("its address cannot be read")
		}
		u.Fragment, u.RawFragment = "", ""
		return u, nil
	case ByCursor:
		var err error
		if value, err = cursorOf(b.doc, pg.Cursor); err != nil || value == "" {
			return nil, err
		}
	case ByNumber:
		if b.fresh == 0 { // only an empty page says that it is the last
			return nil, nil
		}
		value = strconv.Itoa(pg.First + b.pages)
	}
	u := *first
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += escape(pg.Parameter) + "=" + escape(value)
	return &u, nil
}

// cursorOf a page: text or a whole number; absent, null, false and empty are the end.
func cursorOf(doc json.RawMessage, path []string) (string, error) {
	raw, err := reach(doc, path)
	if err != nil {
		return "", nil
	}
	var text string
	switch t := string(raw); {
	case t == "null" || t == "false":
		return "", nil
	case json.Unmarshal(raw, &text) == nil:
	default:
		if _, err := strconv.ParseInt(t, 10, 64); err != nil {
			return "", fmt.Errorf("its cursor is neither text nor a whole number")
		}
		text = t
	}
	if len(text) > maxNext/2 {
		return "", fmt.Errorf("its cursor has %d bytes", len(text))
	}
	return text, nil
}

// binder puts pages together.
type binder struct {
	pg          *Paging
	limit       int // of the whole in bytes
	doc         json.RawMessage
	head        json.RawMessage // the first page
	items       []json.RawMessage
	size        int // of the items
	pages       int
	fresh       int // items of the last page
	bytes       int64
	full        bool
	last        *Answer
	lastContent string
}

func (pg *Paging) begin(first *Answer, limit int) (*binder, error) {
	b := &binder{pg: pg, limit: limit, head: first.Body, items: []json.RawMessage{}, bytes: first.Bytes}
	if first.Truncated {
		return nil, fmt.Errorf("the first alone is too large")
	}
	err := b.add(first)
	b.size = len(first.Body) // with its items, and all around them
	return b, err
}

// add the items of a page, as many as there is room for.
func (b *binder) add(a *Answer) error {
	if a.Truncated {
		return fmt.Errorf("it alone is too large")
	}
	list, err := reach(a.Body, b.pg.Items)
	if err != nil {
		return err
	}
	var items []json.RawMessage
	if string(list) != "null" {
		if err := json.Unmarshal(list, &items); err != nil {
			return fmt.Errorf("its items are no list")
		}
	}
	if b.pages > 0 && len(items) > 0 && string(list) == b.lastContent {
		return fmt.Errorf("it is the same as the one before")
	}
	b.pages, b.fresh, b.last, b.lastContent, b.doc = b.pages+1, len(items), a, string(list), a.Body
	for _, item := range items {
		if b.pages > 1 && b.size+len(item)+1 > b.limit {
			b.full = true
			return nil
		}
		b.size += len(item) + 1
		b.items = append(b.items, item)
	}
	return nil
}

// answer is the first page with the items of all.
func (b *binder) answer(first *Answer, unread string) (*Answer, error) {
	out := *first
	out.Unread, out.Bytes, out.Truncated = unread, b.bytes, b.full
	if b.pages > 1 {
		list, err := plain(b.items)
		if err == nil {
			out.Body, err = replaced(b.head, b.pg.Items, b.pg.Cursor, list)
		}
		if err != nil {
			return nil, err
		}
	}
	out.Digest = canonical.Digest(out.Body)
	return &out, nil
}
