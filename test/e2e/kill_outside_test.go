//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// outside is the world that the product has effects on. It remembers each of them
// by id and knows nothing of the product.
type outside struct {
	URL, Key string // of the ledger
	Notes    string // a folder on the person's machine

	// dawdle, if set, is what the ledger does between an effect and its answer.
	dawdle func()

	mu      sync.Mutex // guards below
	posts   map[string]int
	puts    map[string][]string // keys under which an entry was put
	parcels map[string]int      // can be asked about
	files   map[string]int      // times that a file appeared in its place
}

// newOutside begins the world; the ledger listens where listen does.
func newOutside(t *testing.T, notes string, listen func(network, address string) (net.Listener, error)) *outside {
	t.Helper()
	o := &outside{Key: "ledger-" + filepath.Base(t.TempDir()), Notes: notes, posts: map[string]int{}, puts: map[string][]string{}, parcels: map[string]int{}, files: map[string]int{}}
	l, err := listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/post", func(w http.ResponseWriter, r *http.Request) {
		o.entry(w, r, func(id string) { o.posts[id]++ })
	})
	mux.HandleFunc("POST /v1/put", func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if r.Header.Get("Authorization") != "Bearer "+o.Key || key == "" {
			http.Error(w, "a key of each kind is needed", http.StatusUnauthorized)
			return
		}
		o.entry(w, r, func(id string) { o.puts[id] = append(o.puts[id], key) })
	})
	mux.HandleFunc("POST /v1/parcels", func(w http.ResponseWriter, r *http.Request) {
		o.entry(w, r, func(id string) { o.parcels[id]++ })
	})
	mux.HandleFunc("GET /v1/parcels/{id}", func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		sent := o.parcels[r.PathValue("id")]
		o.mu.Unlock()
		if sent == 0 {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "parcel %s was sent", r.PathValue("id"))
	})
	mux.Handle("/mcp", o.mcp())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	o.URL = "http://" + l.Addr().String()
	o.watch(t, notes)
	return o
}

func (o *outside) entry(w http.ResponseWriter, r *http.Request, note func(id string)) {
	var in struct{ ID string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.ID == "" {
		http.Error(w, "an entry has an id", http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	note(in.ID)
	o.mu.Unlock()
	if o.dawdle != nil {
		o.dawdle()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"entered": in.ID})
}

// mcp is the ledger's other door: an MCP server with one tool.
func (o *outside) mcp() http.Handler {
	s := sdk.NewServer(&sdk.Implementation{Name: "ledger", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "post", InputSchema: json.RawMessage(`{"additionalProperties":false,"properties":{"id":{"minLength":1,"type":"string"}},"required":["id"],"type":"object"}`)},
		func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in struct{ ID string }
			if err := json.Unmarshal(r.Params.Arguments, &in); err != nil || in.ID == "" {
				return nil, errors.New("an entry has an id")
			}
			o.mu.Lock()
			o.posts[in.ID]++
			o.mu.Unlock()
			if o.dawdle != nil {
				o.dawdle()
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "entered " + in.ID}}}, nil
		})
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
}

// watch counts how often each note appears in a folder: a write is a link or a rename.
func (o *outside) watch(t *testing.T, folder string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(folder); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev := range w.Events {
			if ev.Has(fsnotify.Create) {
				o.mu.Lock()
				o.files[filepath.Base(ev.Name)]++
				o.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		w.Close()
		<-done
	})
}

// effects of one tag, each with the times that it happened. What was put under one
// key happened once, however often it came.
func (o *outside) effects(tag string) map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]int{}
	for _, id := range []string{tag + "-post", tag + "-next"} {
		if n := o.posts[id]; n > 0 {
			out[id] = n
		}
	}
	if keys := slices.Clone(o.puts[tag+"-put"]); len(keys) > 0 {
		slices.Sort(keys)
		out[tag+"-put"] = len(slices.Compact(keys))
	}
	if n := o.files[tag+".txt"]; n > 0 {
		out[tag+"-file"] = n
	}
	return out
}

// everything that happened, by the effect.
func (o *outside) everything() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]int{}
	for _, all := range []map[string]int{o.posts, o.parcels} {
		for id, n := range all {
			out[id] = n
		}
	}
	for id, keys := range o.puts {
		sorted := slices.Sorted(slices.Values(keys))
		out[id] = len(slices.Compact(sorted))
	}
	for name, n := range o.files {
		if tag, ok := strings.CutSuffix(name, ".txt"); ok {
			out[tag+"-file"] = n
		}
	}
	return out
}
