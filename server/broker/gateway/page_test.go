package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// paged is a destination that divides what it lists.
func paged(t *testing.T, pg Paging, h http.HandlerFunc) *Destination {
	t.Helper()
	d := destination(t, h)
	if pg.MaxPages == 0 {
		pg.MaxPages = 5
	}
	if pg.MaxBytes == 0 {
		pg.MaxBytes = 1 << 20
	}
	if pg.Timeout == 0 {
		pg.Timeout = 10 * time.Second
	}
	d.cfg.Paging = &pg
	return d
}

func listTool(change func(*brokerv1.HttpTool)) *brokerv1.HttpTool {
	return tool(func(h *brokerv1.HttpTool) {
		h.Path, h.Reads = "/items?state={state}", true
		if change != nil {
			change(h)
		}
	})
}

func list(t *testing.T, d *Destination, h *brokerv1.HttpTool, change func(*Pass)) *Answer {
	t.Helper()
	r, err := d.Prepare(Call{Tool: h, Arguments: []byte(`{"state":"open"}`)})
	if err != nil {
		t.Fatal(err)
	}
	p := Pass{Credential: credential(t)}
	if change != nil {
		change(&p)
	}
	a, err := r.Send(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// counted answers with numbered pages of two items, in the form that is asked for.
type counted struct {
	asked []string
	page  func(w http.ResponseWriter, r *http.Request, n int)
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked = append(c.asked, r.URL.RequestURI())
	if !strings.Contains(r.Header.Get("Authorization"), token) {
		w.WriteHeader(http.StatusUnauthorized)
	}
	c.page(w, r, len(c.asked))
}

func items(n int) string { return fmt.Sprintf(`{"id":%d1,"n":12345678901234567890},{"id":%d2}`, n, n) }

func TestPagesOfLinks(t *testing.T) {
	c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
		if n < 3 {
			w.Header().Add("Link", fmt.Sprintf(`<https://elsewhere.example/?a,b>; rel="prev first", </api/v1/items?after=%d>; title="a, \"b\""; rel=next`, n))
		}
		io.WriteString(w, "["+items(n)+"]")
	}}
	a := list(t, paged(t, Paging{By: ByLink}, c.ServeHTTP), listTool(nil), nil)
	if want := "[" + items(1) + "," + items(2) + "," + items(3) + "]"; string(a.Body) != want || a.Unread != "" || a.Truncated || a.Status != 200 {
		t.Errorf("%s, unread %q", a.Body, a.Unread)
	}
	if got := strings.Join(c.asked, " "); got != "/api/v1/items?state=open /api/v1/items?after=1 /api/v1/items?after=2" {
		t.Errorf("asked %s", got)
	}
}

func TestPagesOfCursors(t *testing.T) {
	c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
		cursor := []string{`"a/b&c=d"`, `7`, `""`}[n-1]
		fmt.Fprintf(w, `{"ok":true,"data":{"list":[%s]},"meta":{"next":%s,"total":6}}`, items(n), cursor)
	}}
	pg := Paging{By: ByCursor, Items: []string{"data", "list"}, Cursor: []string{"meta", "next"}, Parameter: "cursor"}
	a := list(t, paged(t, pg, c.ServeHTTP), listTool(nil), nil)
	if want := `{"data":{"list":[` + items(1) + "," + items(2) + "," + items(3) + `]},"meta":{"total":6},"ok":true}`; string(a.Body) != want || a.Unread != "" {
		t.Errorf("%s, unread %q", a.Body, a.Unread)
	}
	if got := strings.Join(c.asked[1:], " "); got != "/api/v1/items?state=open&cursor=a%2Fb%26c%3Dd /api/v1/items?state=open&cursor=7" {
		t.Errorf("asked %s", got)
	}
}

func TestPagesOfNumbers(t *testing.T) {
	c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 3 {
			io.WriteString(w, `[]`)
			return
		}
		io.WriteString(w, "["+items(n)+"]")
	}}
	a := list(t, paged(t, Paging{By: ByNumber, Parameter: "page", First: 1}, c.ServeHTTP), listTool(nil), nil)
	if want := "[" + items(1) + "," + items(2) + "]"; string(a.Body) != want || a.Unread != "" {
		t.Errorf("%s, unread %q", a.Body, a.Unread)
	}
	if got := strings.Join(c.asked[1:], " "); got != "/api/v1/items?state=open&page=2 /api/v1/items?state=open&page=3" {
		t.Errorf("asked %s", got)
	}
}

// What is not followed is said, and nothing of it is asked for. The twin without a
// fault is TestPagesOfLinks.
func TestPagesThatAreNotFollowed(t *testing.T) {
	for name, tc := range map[string]struct {
		next  string // of the first page
		pg    Paging
		pass  func(*Pass)
		tool  func(*brokerv1.HttpTool)
		page  func(w http.ResponseWriter, n int)
		asked int
		says  string
	}{
		"another host":         {next: "https://elsewhere.example/api/v1/items", asked: 1, says: "another place"},
		"another scheme":       {next: "ftp:/api/v1/items", asked: 1, says: "another place"},
		"another user":         {next: "//user@{host}/api/v1/items", asked: 1, says: "another place"},
		"above the base":       {next: "/other/items", asked: 1, says: "out of the destination"},
		"dots":                 {next: "/api/v1/%2e%2e/admin", asked: 1, says: "out of the destination"},
		"paths say no":         {next: "/api/v1/x", pass: func(p *Pass) { p.LeavesFunc = func(*consul.Request) error { return fmt.Errorf("no") } }, asked: 1, says: "paths refuse GET /api/v1/x"},
		"circle":               {next: "/api/v1/items?state=open", asked: 1, says: "circle"},
		"bound of pages":       {next: "/api/v1/items?n=2", pg: Paging{MaxPages: 2}, page: endless, asked: 2, says: "2 pages were read"},
		"bound of bytes":       {next: "/api/v1/items?n=2", pg: Paging{MaxBytes: 120}, page: endless, asked: 3, says: "max_kib"},
		"an error":             {next: "/api/v1/items?n=2", page: func(w http.ResponseWriter, _ int) { w.WriteHeader(500) }, asked: 2, says: "page 2 was answered with HTTP 500"},
		"a redirect":           {next: "/api/v1/items?n=2", page: func(w http.ResponseWriter, _ int) { w.WriteHeader(302) }, asked: 2, says: "HTTP 302"},
		"no list":              {next: "/api/v1/items?n=2", page: func(w http.ResponseWriter, _ int) { io.WriteString(w, `{"error":"late"}`) }, asked: 2, says: "no list"},
		"the same again":       {next: "/api/v1/items?n=2", page: func(w http.ResponseWriter, _ int) { io.WriteString(w, "["+items(1)+"]") }, asked: 2, says: "the same as the one before"},
		"does not only read":   {next: "/api/v1/items?n=2", tool: func(h *brokerv1.HttpTool) { h.Reads = false }, asked: 1},
		"turns them itself":    {next: "/api/v1/items?n=2", pg: Paging{Parameter: "state"}, asked: 1, says: "has more pages"},
		"holds the credential": {next: "/api/v1/items?t=" + "tok%2F%2Bsecret%220123456789", asked: 1, says: "holds the credential"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
				if n > 1 {
					tc.page(w, n)
					return
				}
				w.Header().Set("Link", "<"+strings.ReplaceAll(tc.next, "{host}", r.Host)+">; rel=\"next\"")
				io.WriteString(w, "["+items(1)+"]")
			}}
			tc.pg.By = ByLink
			a := list(t, paged(t, tc.pg, c.ServeHTTP), listTool(tc.tool), tc.pass)
			if len(c.asked) != tc.asked || !strings.Contains(a.Unread, tc.says) || (a.Unread == "") != (tc.says == "") {
				t.Errorf("asked %q, unread %q", c.asked, a.Unread)
			}
			if !strings.HasPrefix(string(a.Body), "["+items(1)) || a.Status != 200 || strings.Contains(a.Unread, "secret") {
				t.Errorf("%d %s %q", a.Status, a.Body, a.Unread)
			}
		})
	}
}

func endless(w http.ResponseWriter, n int) {
	w.Header().Set("Link", fmt.Sprintf(`</api/v1/items?n=%d>; rel=next`, n+1))
	io.WriteString(w, "["+items(n)+"]")
}

// Where there is no room for all, whole items stand there and the rest is said.
func TestPagesEndAtAnItem(t *testing.T) {
	c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) { endless(w, n) }}
	d := paged(t, Paging{By: ByLink}, c.ServeHTTP)
	r, err := d.Prepare(Call{Tool: listTool(nil), Arguments: []byte(`{"state":"open"}`), MaxBytes: 90})
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Send(t.Context(), Pass{Credential: credential(t)})
	if err != nil || !a.Truncated || !strings.Contains(a.Unread, "fits into 90 bytes") || len(a.Body) > 90 || string(a.Body) != "["+items(1)+`,{"id":21,"n":12345678901234567890}]` {
		t.Errorf("%s, unread %q, %v", a.Body, a.Unread, err)
	}
}

// A destination without pages says that there is more, so that nobody takes the part
// for the whole.
func TestOnePageSaysThatThereAreMore(t *testing.T) {
	next := `</api/v1/items?n=2>; rel="next"`
	d := destination(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", next)
		io.WriteString(w, "["+items(1)+"]")
	})
	if a := list(t, d, listTool(nil), nil); !strings.Contains(a.Unread, "more pages") {
		t.Errorf("unread %q", a.Unread)
	}
	next = `</api/v1/items?n=2>; rel="last"`
	if a := list(t, d, listTool(nil), nil); a.Unread != "" {
		t.Errorf("unread %q", a.Unread)
	}
}

// The paths are asked about every page.
func TestEveryPageIsAsked(t *testing.T) {
	c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 1 {
			endless(w, n)
			return
		}
		io.WriteString(w, "["+items(n)+"]")
	}}
	var paths []string
	list(t, paged(t, Paging{By: ByLink}, c.ServeHTTP), listTool(nil), func(p *Pass) {
		p.LeavesFunc = func(w *consul.Request) error {
			paths = append(paths, w.Method+" "+w.Path)
			if w.Header.Get("Authorization") != "" || len(w.Sealed) != 1 {
				t.Error("paths are shown the credential")
			}
			return nil
		}
	})
	if strings.Join(paths, " ") != "GET /api/v1/items" {
		t.Errorf("asked about %q", paths)
	}
}

// An answer that is not divided as the destination declares is a part until it says
// itself that nothing follows: a look-up that finds nothing in it proves nothing. INV-5.
func TestPartIsNotTheWhole(t *testing.T) {
	cursor := func(items ...string) Paging {
		return Paging{By: ByCursor, Items: items, Cursor: []string{"meta", "next"}, Parameter: "cursor"}
	}
	number := func(items ...string) Paging {
		return Paging{By: ByNumber, Items: items, Parameter: "page", First: 1}
	}
	turned := cursor("data")
	turned.Parameter = "state" // the call has it by itself
	counts := number("data")
	counts.Parameter = "state"
	for name, tc := range map[string]struct {
		pg     Paging
		status int // 0: 200
		body   string
		link   string
		says   string // empty: it is all
	}{
		"cursor, without items":            {pg: cursor(), body: `{"data":[1],"meta":{"next":"abc"}}`, says: "may have more pages"},
		"cursor, items elsewhere":          {pg: cursor("items"), body: `{"data":[1],"meta":{"next":"abc"}}`, says: `it has no "items"`},
		"cursor, both elsewhere":           {pg: cursor("items"), body: `{"data":[1],"next":"abc"}`, says: "may have more pages"},
		"cursor, no JSON":                  {pg: cursor("items"), body: `data: 1`, says: "no JSON"},
		"cursor, items elsewhere, no end":  {pg: cursor("items"), body: `{"data":[1],"meta":{"next":{}}}`, says: "may have more pages"},
		"cursor, items elsewhere, an end":  {pg: cursor("items"), body: `{"data":[1],"meta":{"next":null}}`},
		"cursor, an end":                   {pg: cursor("data"), body: `{"data":[1],"meta":{"next":null}}`},
		"cursor that the call turns":       {pg: turned, body: `{"data":[1],"meta":{"next":"abc"}}`, says: "more pages: this is one"},
		"the last that the call turns":     {pg: turned, body: `{"data":[1],"meta":{}}`},
		"number, items elsewhere":          {pg: number("items"), body: `{"data":[1],"total_pages":9}`, says: "may have more pages"},
		"number, empty":                    {pg: number("items"), body: `{"items":[]}`},
		"number that the call turns":       {pg: counts, body: `{"data":[1]}`, says: "may have more pages"},
		"the end that the call turns":      {pg: counts, body: `{"data":[]}`},
		"link, no list":                    {pg: Paging{By: ByLink}, body: `{}`, link: "next", says: "not put together"},
		"link to the page before, no list": {pg: Paging{By: ByLink}, body: `{}`, link: "prev"},
		"a part, with a link":              {pg: Paging{By: ByLink}, status: 206, body: `[1]`, link: "next", says: "HTTP 206"},
		"a part, without":                  {pg: Paging{By: ByLink}, status: 206, body: `[1]`, says: "HTTP 206"},
		"another status, with a link":      {pg: Paging{By: ByLink}, status: 203, body: `[1]`, link: "next", says: "more pages"},
		"another status, without":          {pg: Paging{By: ByLink}, status: 203, body: `[1]`},
		"a refusal, with a link":           {pg: Paging{By: ByLink}, status: 404, body: `[1]`, link: "next"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
				if tc.link != "" {
					w.Header().Add("Link", `</api/v1/items?after=1>; rel=`+tc.link)
				}
				w.WriteHeader(max(tc.status, http.StatusOK))
				io.WriteString(w, tc.body)
			}}
			a := list(t, paged(t, tc.pg, c.ServeHTTP), listTool(nil), nil)
			if !strings.Contains(a.Unread, tc.says) || (a.Unread == "") != (tc.says == "") || len(c.asked) != 1 || string(a.Body) != tc.body {
				t.Errorf("asked %d, unread %q, %s", len(c.asked), a.Unread, a.Body)
			}
		})
	}
}

// A page of which an item has no room is said, also where it is the last that may be
// read; one that fits into both bounds is all.
func TestFullAtTheLastPage(t *testing.T) {
	for _, most := range []int{2, 3} {
		for size, says := range map[int]string{600 << 10: "page 2 is the last that fits", 100: ""} {
			c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
				if n == 1 {
					w.Header().Add("Link", `</api/v1/items?after=1>; rel=next`)
				}
				fmt.Fprintf(w, `["%s"]`, strings.Repeat(string(rune('a'+n)), size))
			}}
			a := list(t, paged(t, Paging{By: ByLink, MaxPages: most, MaxBytes: 8 << 20}, c.ServeHTTP), listTool(nil), nil)
			if (a.Unread == "") != (says == "") || !strings.Contains(a.Unread, says) || a.Truncated != (says != "") {
				t.Errorf("%d pages, items of %d: unread %q, truncated %v", most, size, a.Unread, a.Truncated)
			}
		}
	}
}

// A list without items stays a list.
func TestEmptyPagesAreAList(t *testing.T) {
	for item, want := range map[string]string{"": `{"data":[]}`, "1": `{"data":[1]}`} {
		c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
			fmt.Fprintf(w, `{"data":[%s],"next":%s}`, []string{"", item}[n-1], []string{`"b"`, `null`}[n-1])
		}}
		a := list(t, paged(t, Paging{By: ByCursor, Items: []string{"data"}, Cursor: []string{"next"}, Parameter: "cursor"}, c.ServeHTTP), listTool(nil), nil)
		if string(a.Body) != want || a.Unread != "" {
			t.Errorf("%s, unread %q", a.Body, a.Unread)
		}
	}
}

// A credential that an answer spells with escapes is none of what comes back, in names
// and in values, of one page and of several; what is escaped and no credential stays as
// it was. INV-17.
func TestEscapedCredentialIsRedacted(t *testing.T) {
	var all, some strings.Builder
	for i, c := range token {
		fmt.Fprintf(&all, `\u%04x`, c)
		if i%2 == 0 || c == '"' {
			fmt.Fprintf(&some, `\u%04X`, c)
		} else {
			some.WriteRune(c)
		}
	}
	innocent := `{"a\u0062":"\u0063\"\/"}`
	for name, tc := range map[string]struct{ item, want string }{
		"a name":        {`{"` + all.String() + `":1}`, `{"[redacted]":1}`},
		"a value":       {`"x ` + all.String() + `"`, `"x [redacted]"`},
		"in part":       {`{"a":["` + some.String() + `"]}`, `{"a":["[redacted]"]}`},
		"no credential": {innocent, innocent},
	} {
		for _, pages := range []int{1, 2} {
			c := &counted{page: func(w http.ResponseWriter, r *http.Request, n int) {
				next := `null`
				if n < pages {
					next = `"b"`
				}
				fmt.Fprintf(w, `{"data":[%s,%d],"next":%s,"%s":0}`, tc.item, n, next, all.String())
			}}
			a := list(t, paged(t, Paging{By: ByCursor, Items: []string{"data"}, Cursor: []string{"next"}, Parameter: "cursor"}, c.ServeHTTP), listTool(nil), nil)
			var read any
			if err := json.Unmarshal(a.Body, &read); err != nil || a.Unread != "" {
				t.Fatalf("%s: %v, unread %q, %s", name, err, a.Unread, a.Body)
			}
			if r := secret.NewRedactor(credential(t)); r.Found(fmt.Sprint(read)) || r.Found(string(a.Body)) || strings.Count(string(a.Body), tc.want) != pages || !strings.Contains(string(a.Body), `"[redacted]":0`) {
				t.Errorf("%s on %d pages: %s", name, pages, a.Body)
			}
		}
	}
}

func FuzzNextLink(f *testing.F) {
	for _, s := range []string{`</a>; rel=next`, `<a>; rel="x next"; t="\"`, `<>,<b>;;=`, `<a`, `<a>;rel=next,<b>;rel=next`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := nextLink(http.Header{"Link": {s}}); got != "" && !strings.Contains(s, "<"+got+">") {
			t.Errorf("%q leads to %q", s, got)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "999999": time.Hour, "Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:00:00 GMT": 0, "soon": 0,
		"99999999999": time.Hour,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q is %s, not %s", text, got, want)
		}
	}
}
