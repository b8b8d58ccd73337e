package vaultpolicy

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// fake is a small server with the answers of a real one, over pipes, so that it works
// in virtual time and can fail on demand. What it answers where is proven against
// real servers by the tests that have one.
type fake struct {
	mu       sync.Mutex
	tokens   map[string]*fakeToken // by token
	kv       map[string][]map[string]any
	entities map[string]bool // disabled?
	denied   string          // a path that the broker has no right to
	standby  bool            // it answers, and is not the active one
	cluster  string          // its id
	logins   int
	asked    map[string]int // requests by path
	fault    func(r *http.Request) (status int, text string)
	gateway  func(r *http.Request) (status int, body string) // answers before it; zero: passes
	instead  *fake                                           // answers where this one did
	audit    func(line string)                               // is told of each request, before its answer
	salt     string                                          // of the audit's hashes
	seal     cipher.AEAD
}

// fakePeriod of grants, short: a virtual day has many polls.
const fakePeriod = 30 * time.Minute

type fakeToken struct {
	accessor, entity, grant, parent string
	policies                        []string
	ttl                             time.Duration
	made                            time.Time // or renewed
	fixed                           bool      // renewals do not move its end
	ending                          time.Time // it is good for nothing from then on, and shown with no time left until it is gone
}

type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	mine, its := net.Pipe()
	select {
	case p.conns <- its:
		return mine, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newFake(t testing.TB) (*fake, *client.Client) {
	t.Helper()
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{tokens: map[string]*fakeToken{}, kv: map[string][]map[string]any{}, entities: map[string]bool{}, asked: map[string]int{}, cluster: "blue"}
	if f.seal, err = cipher.NewGCMWithRandomNonce(block); err != nil {
		t.Fatal(err)
	}
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: f}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(p) }()
	c, err := client.New(client.Config{Address: "http://127.0.0.1:8200", Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		_ = server.Close()
		<-ended
	})
	return f, c
}

// with changes the fake while it serves.
func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	f.mu.Lock()
	f.asked[path]++
	fault, gateway, instead := f.fault, f.gateway, f.instead
	f.mu.Unlock()
	if instead != nil {
		instead.ServeHTTP(w, r)
		return
	}
	if gateway != nil {
		if status, body := gateway(r); status != 0 {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	if fault != nil {
		if status, text := fault(r); status < 0 {
			_, _ = io.Copy(io.Discard, r.Body) // from then on it is seen when the caller goes
			<-r.Context().Done()
			return
		} else if status != 0 {
			answer(w, status, map[string]any{"errors": []string{text}})
			return
		}
	}
	var body map[string]any
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		_ = json.NewDecoder(r.Body).Decode(&body)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	status, said := f.serve(r, path, r.Header.Get("X-Vault-Token"), body)
	id := rand.Text()
	if _, ok := said["data"]; ok {
		said["request_id"] = id
	}
	f.recordLocked(id, f.operation(r, body), path, body)
	answer(w, status, said)
}

// operation of a request, by the words of an audit.
func (f *fake) operation(r *http.Request, body map[string]any) string {
	switch options, _ := body["options"].(map[string]any); {
	case r.URL.Query().Get("list") != "":
		return "list"
	case r.Method == http.MethodGet:
		return "read"
	case r.Method == http.MethodDelete:
		return "delete"
	case options["cas"] == 0.0:
		return "create"
	}
	return "update"
}

// recordLocked writes a line of the audit, in which accessors are hashed.
func (f *fake) recordLocked(id, operation, path string, body map[string]any) {
	if f.audit == nil {
		return
	}
	data := map[string]any{}
	if a, ok := body["accessor"].(string); ok {
		data["accessor"] = f.hashed(a)
	}
	line, _ := json.Marshal(map[string]any{"type": "response", "request": map[string]any{"id": id, "operation": operation, "path": path, "data": data}})
	f.audit(string(line))
}

func (f *fake) hashed(accessor string) string {
	sum := sha256.Sum256([]byte(f.salt + accessor))
	return "hmac-sha256:" + hex.EncodeToString(sum[:])
}

func answer(w http.ResponseWriter, status int, said map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, ok := said["data"]; ok || said["auth"] != nil { // else an error, or bare
		framed := map[string]any{"request_id": "r", "lease_id": "", "lease_duration": 0, "data": nil, "auth": nil}
		maps.Copy(framed, said)
		said = framed
	}
	if said != nil {
		_ = json.NewEncoder(w).Encode(said)
	}
}

func refuse(status int, text string) (int, map[string]any) {
	if text == "" {
		return status, map[string]any{"errors": []string{}}
	}
	return status, map[string]any{"errors": []string{text}}
}

func says(data map[string]any) (int, map[string]any) { return 200, map[string]any{"data": data} }

func (f *fake) alive(token string) *fakeToken {
	x := f.tokens[token]
	switch {
	case x == nil, x.ttl > 0 && time.Since(x.made) >= x.ttl, !x.ending.IsZero() && !time.Now().Before(x.ending), f.entities[x.entity]:
		return nil
	case x.parent != "" && f.alive(x.parent) == nil:
		return nil
	}
	return x
}

func (f *fake) make(x fakeToken) (int, map[string]any) {
	x.made, x.accessor = time.Now(), "acc-"+rand.Text()
	token := "hvs." + rand.Text()
	f.tokens[token] = &x
	return 200, map[string]any{"auth": map[string]any{
		"client_token": token, "accessor": x.accessor, "entity_id": x.entity, "policies": x.policies, "lease_duration": int(x.ttl.Seconds()), "renewable": true,
	}}
}

func (f *fake) serve(r *http.Request, path, token string, body map[string]any) (int, map[string]any) {
	if path == "auth/approle/login" {
		f.logins++
		return f.make(fakeToken{policies: []string{"bivouac-broker"}, ttl: time.Hour})
	}
	if path == "sys/leader" {
		return 200, map[string]any{"ha_enabled": f.standby}
	}
	if path == "sys/seal-status" {
		return 200, map[string]any{"initialized": true, "sealed": false, "cluster_id": f.cluster}
	}
	me := f.alive(token)
	broker := me != nil && slices.Contains(me.policies, "bivouac-broker")
	switch {
	case me == nil, broker && f.denied != "" && strings.HasPrefix(path, f.denied):
		return refuse(403, "permission denied")
	case path == "auth/token/revoke-self" && !broker && me.grant != "":
		delete(f.tokens, token)
		return 204, nil
	case path == "auth/token/create" && !broker:
		return f.make(fakeToken{parent: token, policies: []string{body["policies"].(string)}, ttl: time.Minute})
	case strings.HasPrefix(path, "bivouac-credentials/data/") && r.Method == http.MethodGet && !broker:
		if want := "bivouac-use-" + strings.ReplaceAll(strings.TrimPrefix(path, "bivouac-credentials/data/"), "/", "-"); !slices.Contains(me.policies, want) {
			return refuse(403, "permission denied")
		}
		return f.serveKV(r, path, body)
	case !broker:
		return refuse(403, "permission denied")
	case strings.HasPrefix(path, "auth/token/"):
		return f.serveToken(path, me, body)
	case strings.HasPrefix(path, "identity/entity/id/"):
		off, ok := f.entities[strings.TrimPrefix(path, "identity/entity/id/")]
		if !ok {
			return refuse(404, "")
		}
		return says(map[string]any{"disabled": off})
	case strings.HasPrefix(path, "sys/policies/acl/"):
		return says(map[string]any{"policy": "…"})
	case path == "sys/capabilities-self":
		return says(map[string]any{lookupPath: []string{"update"}})
	case strings.HasPrefix(path, "bivouac-transit/"):
		return f.serveTransit(path, body)
	}
	return f.serveKV(r, path, body)
}

func (f *fake) serveToken(path string, me *fakeToken, body map[string]any) (int, map[string]any) {
	switch path {
	case "auth/token/lookup-self":
		return says(map[string]any{"accessor": me.accessor, "ttl": int(me.ttl.Seconds()), "renewable": true, "policies": me.policies})
	case "auth/token/renew-self":
		me.made = time.Now()
		return 200, map[string]any{"auth": map[string]any{"client_token": "hvs.renewed-0", "lease_duration": int(me.ttl.Seconds()), "renewable": true}}
	case "auth/token/create/bivouac-grant":
		entity := "ent-" + body["entity_alias"].(string)
		if _, ok := f.entities[entity]; !ok {
			f.entities[entity] = false
		}
		var names []string
		for _, p := range body["policies"].([]any) {
			names = append(names, p.(string))
		}
		return f.make(fakeToken{entity: entity, grant: body["meta"].(map[string]any)["grant_id"].(string), policies: names, ttl: fakePeriod})
	}
	accessor, _ := body["accessor"].(string)
	for key, x := range f.tokens {
		if x.accessor != accessor || x.ending.IsZero() && x.ttl > 0 && time.Since(x.made) >= x.ttl {
			continue
		}
		switch path {
		case "auth/token/revoke-accessor":
			delete(f.tokens, key)
			return 204, nil
		case "auth/token/renew-accessor":
			if !x.fixed {
				x.made = time.Now()
			}
			return 200, map[string]any{"auth": map[string]any{"accessor": accessor, "lease_duration": int((x.ttl - time.Since(x.made)).Seconds())}}
		}
		ends := x.made.Add(x.ttl)
		if !x.ending.IsZero() {
			ends = x.ending
		}
		return says(map[string]any{"accessor": accessor, "meta": map[string]any{"grant_id": x.grant}, "entity_id": x.entity, "ttl": max(0, int(time.Until(ends).Seconds())),
			"expire_time": ends.UTC().Format(time.RFC3339Nano), "issue_time": x.made.UTC().Format(time.RFC3339Nano), "creation_ttl": int(x.ttl.Seconds())})
	}
	return refuse(403, "invalid accessor")
}

func (f *fake) serveTransit(path string, body map[string]any) (int, map[string]any) {
	bind := []byte(path[strings.LastIndex(path, "/"):] + body["associated_data"].(string))
	if strings.Contains(path, "/encrypt/") {
		text, _ := base64.StdEncoding.DecodeString(body["plaintext"].(string))
		return says(map[string]any{"ciphertext": "vault:v1:" + base64.StdEncoding.EncodeToString(f.seal.Seal(nil, nil, text, bind))})
	}
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(body["ciphertext"].(string), "vault:v1:"))
	text, err := f.seal.Open(nil, nil, raw, bind)
	if err != nil {
		return refuse(400, "cipher: message authentication failed")
	}
	return says(map[string]any{"plaintext": base64.StdEncoding.EncodeToString(text)})
}

func (f *fake) serveKV(r *http.Request, path string, body map[string]any) (int, map[string]any) {
	mount, rest, _ := strings.Cut(path, "/")
	kind, name, _ := strings.Cut(rest, "/")
	if r.URL.Query().Get("list") != "" {
		return f.listKV(mount + "/" + strings.Trim(name, "/"))
	}
	key := mount + "/" + name
	versions := f.kv[key]
	switch {
	case r.Method == http.MethodDelete:
		delete(f.kv, key)
		return 204, nil
	case r.Method == http.MethodGet && len(versions) == 0:
		return refuse(404, "")
	case kind == "metadata":
		n := strconv.Itoa(len(versions))
		return says(map[string]any{"current_version": len(versions), "versions": map[string]any{n: map[string]any{"created_time": time.Now().UTC().Format(time.RFC3339Nano)}}})
	case r.Method == http.MethodGet:
		return says(map[string]any{"data": versions[len(versions)-1], "metadata": map[string]any{"version": len(versions)}})
	}
	options, _ := body["options"].(map[string]any)
	if cas, ok := options["cas"].(float64); ok && int(cas) != len(versions) {
		return refuse(400, "check-and-set parameter did not match the current version")
	}
	f.kv[key] = append(versions, body["data"].(map[string]any))
	return says(nil)
}

func (f *fake) listKV(folder string) (int, map[string]any) {
	names := map[string]bool{}
	for key := range f.kv {
		rest, ok := strings.CutPrefix(key, strings.TrimSuffix(folder, "/")+"/")
		if !ok {
			continue
		}
		if head, _, deep := strings.Cut(rest, "/"); deep {
			names[head+"/"] = true
		} else {
			names[rest] = true
		}
	}
	if len(names) == 0 {
		return refuse(404, "")
	}
	return says(map[string]any{"keys": slices.Sorted(maps.Keys(names))})
}

// plainTrust lends what a keyring lends, and seals nothing.
type plainTrust struct{}

func (plainTrust) Recipient() (string, string) { return "age1…", "…" }
func (plainTrust) OpenCredential(_ protocol.TenantID, _ string, sealed []byte) (secret.Value, error) {
	return secret.New(string(sealed))
}
