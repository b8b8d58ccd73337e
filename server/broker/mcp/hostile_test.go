package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/secret"
)

// liar is a server that is written by hand: right where nothing else is said. Each
// member answers its method instead.
type liar struct {
	t                      *testing.T
	discover               answerFunc
	initialize, list, call func(w http.ResponseWriter, r *http.Request, id string)

	mu                    sync.Mutex
	calls, replies, ended int // tools called, answers to its own requests, sessions that ended
}

func (l *liar) count(n *int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*n++
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		l.count(&l.ended)
		return
	}
	body, err := io.ReadAll(r.Body)
	m, bad := parseMessage(body)
	if r.Method != http.MethodPost || r.URL.Path != "/mcp" || err != nil || bad != nil {
		l.t.Errorf("the client sent %s %s %s", r.Method, r.URL, body)
	}
	answer := map[string]func(http.ResponseWriter, *http.Request, string){methodDiscover: l.discover, methodInitialize: l.initialize, methodList: l.list, methodCall: l.call}[m.method]
	switch {
	case m.method == "":
		l.count(&l.replies)
		w.WriteHeader(http.StatusAccepted)
	case m.method == methodCall:
		l.count(&l.calls)
		if answer == nil {
			answer = says(`{"content":[{"type":"text","text":"done"}]}`)
		}
		answer(w, r, string(m.id))
	case answer != nil:
		answer(w, r, string(m.id))
	case m.method == methodInitialize:
		w.Header().Set("Mcp-Session-Id", "s-1")
		says(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"liar","version":"1"}}`)(w, r, string(m.id))
	case m.method == methodList:
		says(listOf(searchTool))(w, r, string(m.id))
	case m.method == methodInitialized:
		w.WriteHeader(http.StatusAccepted)
	default:
		http.NotFound(w, r)
	}
}

const searchTool = `{"name":"search","description":"d","inputSchema":` + schemaText + `}`

func listOf(tools ...string) string { return `{"tools":[` + strings.Join(tools, ",") + `]}` }

type answerFunc = func(http.ResponseWriter, *http.Request, string)

// says answers with a result.
func says(result string) answerFunc {
	return func(w http.ResponseWriter, _ *http.Request, id string) {
		raw("application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":`+result+`}`)(w, nil, id)
	}
}

// raw answers with a body in which ID is the request's id.
func raw(kind, body string) answerFunc {
	return func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", kind)
		io.WriteString(w, strings.ReplaceAll(body, "ID", id))
	}
}

func stream(body string) answerFunc { return raw("text/event-stream", body) }

func status(code int, header ...string) answerFunc {
	return func(w http.ResponseWriter, _ *http.Request, _ string) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// hang until the client goes.
func hang(before string) answerFunc {
	return func(w http.ResponseWriter, r *http.Request, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, before)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// endless sends the same until the client goes.
func endless(kind, piece string) answerFunc {
	return func(w http.ResponseWriter, r *http.Request, _ string) {
		w.Header().Set("Content-Type", kind)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	}
}

func breakOff(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) }

// lies are answers that no request may get.
var lies = map[string]answerFunc{
	"batch":             raw("application/json", `[{"jsonrpc":"2.0","id":ID,"result":{}}]`),
	"batch in a stream": stream("data: [{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}]\n\n"),
	"another's id":      raw("application/json", `{"jsonrpc":"2.0","id":99,"result":{}}`),
	"another's, stream": stream("data: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n"),
	"id as text":        raw("application/json", `{"jsonrpc":"2.0","id":"ID","result":{}}`),
	"id as fraction":    raw("application/json", `{"jsonrpc":"2.0","id":ID.0,"result":{}}`),
	"id twice":          raw("application/json", `{"jsonrpc":"2.0","id":99,"result":{},"id":ID}`),
	"no id":             raw("application/json", `{"jsonrpc":"2.0","result":{}}`),
	"result and error":  raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"x"}}`),
	"neither":           raw("application/json", `{"jsonrpc":"2.0","id":ID}`),
	"JSON-RPC 1":        raw("application/json", `{"id":ID,"result":{}}`),
	"request, document": raw("application/json", `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`),
	"not JSON":          raw("application/json", `{"jsonrpc":"2.0","id":ID,`),
	"text after":        raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":{}} {}`),
	"not UTF-8":         raw("application/json", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"x\":\"\xff\"}}"),
	"deep":              raw("application/json", `{"jsonrpc":"2.0","id":ID,"result":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`),
	"HTML":              raw("text/html", "<html>please log in</html>"),
	"no type":           raw("", "{}"),
	"accepted":          status(http.StatusAccepted),
	"packed": func(w http.ResponseWriter, _ *http.Request, _ string) {
		status(200, "Content-Encoding", "gzip", "Content-Type", "application/json")(w, nil, "")
	},
	"large":            endless("application/json", strings.Repeat(" ", 4096)),
	"endless stream":   endless("text/event-stream", ": nothing\n"+strings.Repeat(" ", 4096)+"\n"),
	"endless event":    endless("text/event-stream", "data: "+strings.Repeat("x", 4096)+"\n"),
	"endless messages": endless("text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"),
	"asks for ever":    endless("text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"sampling/createMessage\",\"params\":{}}\n\n"),
	"other session": func(w http.ResponseWriter, r *http.Request, id string) {
		w.Header().Set("Mcp-Session-Id", "s-2")
		says("{}")(w, r, id)
	},
}

// breaks are answers that do not come whole.
var breaks = map[string]answerFunc{
	"broken off":  breakOff,
	"half a line": stream("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n"),
	"empty":       stream(""),
	"short": func(w http.ResponseWriter, _ *http.Request, _ string) {
		status(200, "Content-Type", "application/json", "Content-Length", "100")(w, nil, "")
	},
}

func small(c *Config) { c.Bounds.MaxAnswer, c.Bounds.MaxTools = 64<<10, 50 }

// A server that lies, floods or breaks off while it is listed is not called; the
// twin without the lie is.
func TestLiesBeforeACall(t *testing.T) {
	cases := map[string]struct {
		server *liar
		code   protocol.Code
	}{
		"redirect": {&liar{list: status(307, "Location", "http://127.0.0.1:1/")}, protocol.CodeFailedPrecondition},
		"401":      {&liar{initialize: status(401)}, protocol.CodePermissionDenied},
		"403":      {&liar{list: status(403)}, protocol.CodePermissionDenied},
		"404":      {&liar{initialize: status(404)}, protocol.CodeFailedPrecondition},
		"429":      {&liar{list: status(429, "Retry-After", "7")}, protocol.CodeRateLimited},
		"500":      {&liar{list: status(500)}, protocol.CodeUnavailable},
		"error":    {&liar{list: raw("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"no"}}`)}, protocol.CodeFailedPrecondition},
		"session id": {&liar{initialize: func(w http.ResponseWriter, r *http.Request, id string) {
			w.Header().Set("Mcp-Session-Id", "a b")
			says(`{"protocolVersion":"2025-11-25","capabilities":{}}`)(w, r, id)
		}}, protocol.CodeFailedPrecondition},
		"version":           {&liar{initialize: says(`{"protocolVersion":"2099-01-01","capabilities":{}}`)}, protocol.CodeFailedPrecondition},
		"version, a list":   {&liar{initialize: says(`{"protocolVersion":[],"capabilities":{}}`)}, protocol.CodeFailedPrecondition},
		"listed twice":      {&liar{list: says(listOf(searchTool, searchTool))}, protocol.CodeFailedPrecondition},
		"headers":           {&liar{list: says(listOf(strings.Replace(searchTool, `"type":"string"`, `"type":"string","x-mcp-header":"Authorization"`, 1)))}, protocol.CodeFailedPrecondition},
		"other schema":      {&liar{list: says(listOf(strings.Replace(searchTool, `"string"`, `"number"`, 1)))}, protocol.CodeFailedPrecondition},
		"schema's key":      {&liar{list: says(listOf(strings.Replace(searchTool, `"type":"object"`, `"type":"object","type":"object"`, 1)))}, protocol.CodeFailedPrecondition},
		"no schema":         {&liar{list: says(listOf(`{"name":"search"}`))}, protocol.CodeFailedPrecondition},
		"gone":              {&liar{list: says(listOf())}, protocol.CodeFailedPrecondition},
		"too many":          {&liar{list: says(listOf(slices.Repeat([]string{searchTool}, 51)...))}, protocol.CodeFailedPrecondition},
		"list is a word":    {&liar{list: says(`{"tools":"all"}`)}, protocol.CodeFailedPrecondition},
		"a tool of nothing": {&liar{list: says(`{"tools":[null]}`)}, protocol.CodeFailedPrecondition},
		"circle":            {&liar{list: says(`{"tools":[],"nextCursor":"again"}`)}, protocol.CodeFailedPrecondition},
		"huge cursor":       {&liar{list: says(`{"tools":[],"nextCursor":"` + strings.Repeat("c", 5000) + `"}`)}, protocol.CodeFailedPrecondition},
		"endless pages":     {&liar{list: pages()}, protocol.CodeFailedPrecondition},
		"always changing":   {&liar{list: stream("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":" + listOf(searchTool) + "}\n\n")}, protocol.CodeUnavailable},
	}
	for name, lie := range lies {
		cases[name+" as list"] = struct {
			server *liar
			code   protocol.Code
		}{&liar{list: lie}, protocol.CodeFailedPrecondition}
	}
	for name, b := range breaks {
		cases[name+" as list"] = struct {
			server *liar
			code   protocol.Code
		}{&liar{list: b}, protocol.CodeUnavailable}
	}
	for name := range cases {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			l := &liar{t: t, initialize: tc.server.initialize, list: tc.server.list}
			_, err := invoke(t.Context(), endpoint(t, l, small), access(t), search("search"))
			var never *gateway.NotSent
			if !errors.As(err, &never) || protocol.CodeOf(err) != tc.code || l.calls != 0 {
				t.Errorf("%v (%d calls), want %s", err, l.calls, tc.code)
			}
			var e *protocol.Error
			if name == "429" && (!errors.As(err, &e) || e.RetryAfter != 7*time.Second) {
				t.Errorf("when to come again is lost: %v", err)
			}
		})
	}
	l := &liar{t: t}
	a, err := invoke(t.Context(), endpoint(t, l, small), access(t), search("search"))
	if err != nil || string(a.Body) != "done" || l.calls != 1 || l.ended != 1 {
		t.Errorf("the twin: %+v %v, %d calls, %d ends", a, err, l.calls, l.ended)
	}
}

func pages() answerFunc {
	n := 0
	return func(w http.ResponseWriter, r *http.Request, id string) {
		n++
		says(fmt.Sprintf(`{"tools":[],"nextCursor":"p%d"}`, n))(w, r, id)
	}
}

// INV-5: a call that left and was answered by a lie, or by nothing, is unknown, and
// is not sent again; one that only reads has failed. Either way it was sent once.
func TestLiesInACall(t *testing.T) {
	for name, lie := range lies {
		for _, reads := range []bool{false, true} {
			l := &liar{t: t, call: lie}
			c := search("search")
			c.Reads = reads
			a, err := invoke(t.Context(), endpoint(t, l, small), access(t), c)
			if l.calls != 1 {
				t.Errorf("%s: sent %d times", name, l.calls)
			}
			if reads && (err != nil || !a.Failed) || !reads && protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
				t.Errorf("%s, reads=%v: %+v %v", name, reads, a, err)
			}
			var never *gateway.NotSent
			if errors.As(err, &never) {
				t.Errorf("%s: it says that nothing left", name)
			}
		}
	}
	for name, b := range breaks {
		l := &liar{t: t, call: b}
		c := search("search")
		c.Reads = true
		if _, err := invoke(t.Context(), endpoint(t, l, small), access(t), c); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || l.calls != 1 {
			t.Errorf("%s: %v, %d calls", name, err, l.calls)
		}
	}
}

// Answers that say no are known.
func TestNoIsAnAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		call   answerFunc
		status int
		says   string
	}{
		"401":           {status(401), 401, "HTTP 401"},
		"429":           {status(429), 429, "HTTP 429"},
		"500":           {status(500), 500, "HTTP 500"},
		"redirect":      {status(302, "Location", "http://evil.example/"), 302, "redirects are not followed"},
		"error":         {raw("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"unknown\n tool"}}`), 200, "error -32602: unknown  tool"},
		"isError":       {says(`{"content":[{"type":"text","text":"no ticket"}],"isError":true}`), 200, "no ticket"},
		"wants input":   {says(`{"resultType":"input_required","content":[],"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"your password?"}}},"requestState":"x"}`), 200, "which is refused"},
		"unknown block": {says(`{"content":[{"type":"video","data":"x"}]}`), 200, "none of MCP's"},
	} {
		l := &liar{t: t, call: tc.call}
		c := search("search")
		c.Reads = name == "unknown block"
		a, err := invoke(t.Context(), endpoint(t, l, small), access(t), c)
		if err != nil || !a.Failed || a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) || l.calls != 1 {
			t.Errorf("%s: %+v %v, %d calls", name, a, err, l.calls)
		}
	}
}

// An older server says no to what it does not know in its own way, and is spoken to
// in its own version; one that lets nobody in is not asked again.
func TestOlderServers(t *testing.T) {
	for name, no := range map[string]answerFunc{
		"404": status(404), "400": status(400), "500": status(500), "HTML": raw("text/html", "what?"), "accepted": status(202), "no id": raw("application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"?"}}`),
		"error": raw("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"?"}}`),
	} {
		l := &liar{t: t, discover: no}
		if a, err := invoke(t.Context(), endpoint(t, l, nil), access(t), search("search")); err != nil || string(a.Body) != "done" {
			t.Errorf("%s: %+v %v", name, a, err)
		}
	}
	asked := false
	l := &liar{t: t, discover: status(401), initialize: func(http.ResponseWriter, *http.Request, string) { asked = true }}
	if _, err := invoke(t.Context(), endpoint(t, l, nil), access(t), search("search")); protocol.CodeOf(err) != protocol.CodePermissionDenied || asked {
		t.Errorf("%v, asked again: %v", err, asked)
	}
}

// One session calls once, whoever asks.
func TestOneCallASession(t *testing.T) {
	l := &liar{t: t}
	s, err := endpoint(t, l, nil).Open(t.Context(), access(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if _, err := s.Call(t.Context(), search("search")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Call(t.Context(), search("search")); err == nil || l.calls != 1 {
		t.Errorf("%v, %d calls", err, l.calls)
	}
}

// What a server asks of a client is refused in the protocol's own words, and the
// call goes on; a tool list that changed is read again.
func TestServerAsks(t *testing.T) {
	l := &liar{t: t, call: stream("event: message\nid: 5\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"sampling/createMessage\",\"params\":{}}\n\n" +
		"data: {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"elicitation/create\"}\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"roots/list\"}\r\r: a comment\n\n" +
		"data: {\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"ping\"}\n\nid: 9\n\nevent: other\ndata: nonsense\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\"log\"}}\n\n" +
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}\n\n")}
	// The server answers its own questions while it streams: a lock would deadlock.
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") != "" || r.Method == http.MethodDelete {
			l.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		replies <- string(body)
		w.WriteHeader(http.StatusAccepted)
	})
	a, err := invoke(t.Context(), endpoint(t, server, nil), access(t), search("search"))
	if err != nil || string(a.Body) != "done" {
		t.Fatalf("%+v %v", a, err)
	}
	for _, id := range []string{`"q"`, "2", "3", "4"} {
		got := <-replies
		var m struct {
			ID     json.RawMessage `json:"id"`
			Error  *wireFault      `json:"error"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal([]byte(got), &m); err != nil || string(m.ID) != id || id == "4" && string(m.Result) != "{}" || id != "4" && (m.Error == nil || m.Error.Code != -32601) {
			t.Errorf("%s was answered with %s", id, got)
		}
	}
	lists := 0
	l2 := &liar{t: t, list: func(w http.ResponseWriter, r *http.Request, id string) {
		changed := ""
		if lists++; lists == 1 {
			changed = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
		}
		stream(changed+"data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":"+listOf(searchTool)+"}\n\n")(w, r, id)
	}}
	if a, err := invoke(t.Context(), endpoint(t, l2, nil), access(t), search("search")); err != nil || string(a.Body) != "done" || lists != 2 || l2.calls != 1 {
		t.Errorf("%+v %v, %d lists", a, err, lists)
	}
}

var replies = make(chan string, 8)

// A call ends with its time, and with the authority for it, whatever a server does;
// nothing is said to the server after that.
func TestHangsEnd(t *testing.T) {
	over := protocol.Errorf(protocol.CodePermissionDenied, "revoked")
	for name, tc := range map[string]struct {
		server *liar
		code   protocol.Code
	}{
		"handshake": {&liar{initialize: hang("")}, protocol.CodePermissionDenied},
		"list":      {&liar{list: hang("data: {\"jsonrpc\":")}, protocol.CodePermissionDenied},
		"call":      {&liar{call: hang("")}, protocol.CodeOutcomeUnknown},
		"half":      {&liar{call: hang("data: {\"jsonrpc\":\"2.0\",")}, protocol.CodeOutcomeUnknown},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		begun := make(chan struct{})
		l := &liar{t: t, initialize: tc.server.initialize, list: tc.server.list, call: tc.server.call}
		tell := func(f answerFunc) answerFunc {
			if f == nil {
				return nil
			}
			return func(w http.ResponseWriter, r *http.Request, id string) { close(begun); f(w, r, id) }
		}
		l.initialize, l.list, l.call = tell(l.initialize), tell(l.list), tell(l.call)
		e := endpoint(t, l, nil)
		go func() { <-begun; cancel(over) }()
		_, err := invoke(ctx, e, access(t), search("search"))
		if protocol.CodeOf(err) != tc.code || !errors.Is(err, over) {
			t.Errorf("%s: %v", name, err)
		}
		l.mu.Lock()
		if l.ended != 0 {
			t.Errorf("%s: something was sent after the authority had ended", name)
		}
		l.mu.Unlock()
	}
}

// INV-17: wherever a server repeats the credential, however it hides it, what comes
// back has nothing of it, and no half of it.
func TestNothingIsEchoed(t *testing.T) {
	known := secret.NewRedactor(access(t).Credential)
	quoted, err := json.Marshal(token)
	if err != nil {
		t.Fatal(err)
	}
	q := strings.Trim(string(quoted), `"`)
	hidden := strings.Join(strings.Split(q, "+"), "\u200b+") // a character that words leave out
	escaped := strings.ReplaceAll(q, "t", `\u0074`)
	within, err := json.Marshal(`{"a":"` + escaped + `"}`) // JSON in a text
	if err != nil {
		t.Fatal(err)
	}
	twice := strings.TrimSuffix(strings.TrimPrefix(string(within), `"`), `"`)
	loose, err := json.Marshal(`a 5" disk said Bearer ` + escaped) // and no JSON
	if err != nil {
		t.Fatal(err)
	}
	stray := strings.TrimSuffix(strings.TrimPrefix(string(loose), `"`), `"`)
	padded := strings.Repeat("x", maxWords-len(token)/2) + q
	for name, text := range map[string]string{"plain": q, "hidden": hidden, "escaped": escaped, "escaped within": twice, "after a quote": stray, "at the cut": padded} {
		for where, l := range map[string]*liar{
			"error":       {call: raw("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"`+text+`"}}`)},
			"early error": {list: raw("application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"`+text+`"}}`)},
			"status": {call: func(w http.ResponseWriter, r *http.Request, id string) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(400)
				io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"`+text+`"}}`)
			}},
			"text":       {call: says(`{"content":[{"type":"text","text":"` + text + `"}]}`)},
			"structured": {call: says(`{"content":[],"structuredContent":{"` + text + `":"` + text + `"}}`)},
			"link":       {call: says(`{"content":[{"type":"resource_link","uri":"` + text + `","name":"` + text + `"}]}`)},
			"image":      {call: says(`{"content":[{"type":"image","data":"","mimeType":"` + text + `"}]}`)},
			"tool":       {list: says(listOf(searchTool, strings.Replace(strings.Replace(searchTool, `"d"`, `"`+text+`"`, 1), "search", text, 1)))},
			"schema":     {list: says(listOf(searchTool, strings.Replace(strings.Replace(searchTool, "query", text, 1), "search", "other", 1)))},
			"type":       {call: raw("x/"+strings.ReplaceAll(q, `\"`, ""), "")},
		} {
			l.t = t
			e := endpoint(t, l, nil)
			var got []string
			s, err := e.Open(t.Context(), access(t))
			if err == nil {
				for _, o := range s.Offers() {
					got = append(got, o.Name, o.Description, o.Schema, o.Problem)
				}
				var a *gateway.Answer
				if a, err = s.Call(t.Context(), search("search")); err == nil {
					got = append(got, string(a.Body), a.ContentType)
				}
				s.Close(t.Context())
			}
			if err != nil {
				got = append(got, err.Error())
			}
			all := strings.ReplaceAll(strings.Join(got, "\n"), `\u0074`, "t")
			if known.Found(all) || strings.Contains(all, token[:len(token)/2]) {
				t.Errorf("%s in %s: %q", name, where, all)
			}
		}
	}
}

// INV-17: nothing that nobody sees keeps the credential from being found in a server's
// words, and nothing of it reaches who reads them; what can be seen stays.
func TestWordsAreSeen(t *testing.T) {
	w := newWire(endpoint(t, &liar{t: t}, nil), access(t))
	for name, unseen := range map[string]string{
		"zero width": "\u200b", "control": "\x1b", "filler": "\u3164", "selector": "\ufe0f", "braille blank": "\u2800", "private": "\ue000",
		"unassigned": "\u0378", "no UTF-8": "\xff", "replacement": "\ufffd",
	} {
		if got := w.words("it was " + strings.Join(strings.Split(token, ""), unseen)); got != "it was [redacted]" {
			t.Errorf("%s: %q", name, got)
		}
	}
	const plain = "Grüße, 日本語 → ✓"
	if got := w.words(" " + strings.ReplaceAll(plain, " ", "\n") + "\t"); got != plain {
		t.Errorf("%q", got)
	}
}
