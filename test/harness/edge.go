package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"bivouac/edge"
	"bivouac/edge/device"
	"bivouac/edge/link/linktest"
	"bivouac/edge/owner"
	"bivouac/edge/sandbox/twin"
	"bivouac/edge/state"
	"bivouac/edge/worker"
	"bivouac/server/api/apiv1"
)

// Edge is one machine: its daemon, its supervisors, and a folder "notes" that
// its owner opened.
type Edge struct {
	Name  string
	Notes string // the folder on the disk

	w           *World
	ip          string
	dir         *state.Dir
	backend     *twin.Backend
	supervisors *supervisors
	control     *linktest.Listener
	daemon      *edge.Daemon
	now         part
}

// EdgeOptions of a machine.
type EdgeOptions struct {
	// Owner who joins it. Default: alice.
	Owner *Person
	// Actions that the owner may use on it; empty: all, and whole turns.
	Actions []string
	// Slots for turns. Default 1.
	Slots int
	// SecondKeys that its owner holds.
	SecondKeys []owner.SecondKey
	// Quota that its owner sets.
	Quota owner.Quota
}

// Edge is the machine of a name; at the first call it joins with a real code,
// starts, and is connected when Edge returns.
func (w *World) Edge(name string) *Edge {
	w.t.Helper()
	if e := w.edges[name]; e != nil {
		return e
	}
	return w.EdgeWith(name, EdgeOptions{})
}

// EdgeWith makes a machine that is not like the others.
func (w *World) EdgeWith(name string, o EdgeOptions) *Edge {
	w.t.Helper()
	if o.Owner == nil {
		o.Owner = w.admin
	}
	if len(o.Actions) == 0 {
		o.Actions = []string{"turn", device.List, device.Read, device.Write}
	}
	if o.Slots == 0 {
		o.Slots = 1
	}
	e := &Edge{Name: name, Notes: w.path("edge-"+name, "notes"), w: w, ip: fmt.Sprintf("10.0.1.%d", len(w.edges)+1)}
	w.must(os.Mkdir(e.Notes, 0o700))
	e.backend, e.supervisors = twin.New(twin.Config{Programs: w.programs(name), Report: w.report()}), newSupervisors(e)
	w.edges[name] = e
	e.join(o)
	e.start()
	e.AwaitConnected()
	return e
}

// join enrols the machine as its owner does.
func (e *Edge) join(o EdgeOptions) {
	e.w.t.Helper()
	res, err := o.Owner.Runners.CreateJoinCode(e.w.t.Context(), &apiv1.CreateJoinCodeRequest{Name: e.Name, Actions: o.Actions})
	e.w.must(err)
	path := e.w.path("edge-"+e.Name, "state")
	_, err = edge.Join(e.w.t.Context(), edge.JoinParams{
		Server: "https://" + runnerAddr, Code: res.GetCode(), Name: e.Name, State: path, Version: "harness",
		Network: e.w.net.Network(e.ip),
		Policy: owner.Policy{Slots: o.Slots, SecondKeys: o.SecondKeys, Quota: o.Quota, Folders: []device.Folder{
			{Name: "notes", Path: e.Notes, Actions: []string{device.List, device.Read, device.Write}}}},
	})
	e.w.must(err)
	e.dir, err = state.Open(path)
	e.w.must(err)
}

// start runs a daemon over the machine's state.
func (e *Edge) start() {
	e.w.t.Helper()
	control := linktest.NewListener()
	e.control = control
	d, err := edge.New(edge.Config{
		State: e.dir, Network: e.w.net.Network(e.ip), Elapsed: e.w.elapsed, Sandbox: e.backend,
		Adapters: worker.Adapters(), Supervisors: e.supervisors.spawner, Control: func() (net.Listener, error) { return control, nil },
		PeerFunc: func(net.Conn) (string, error) { return Owner, nil },
		Version:  "harness", Log: e.w.Log.logger(e.Name),
	})
	e.w.must(err)
	e.daemon = d
	e.now.now = run(d.Run)
}

// AwaitConnected waits until the daemon has a session with the server that runs
// now: an earlier one may have died unnoticed.
func (e *Edge) AwaitConnected() {
	e.w.t.Helper()
	e.w.Until("edge "+e.Name+" is connected", 2*time.Minute, func() bool {
		s := e.daemon.Status()
		taken := e.w.Log.Find(Server, "runner connected", "runner", s.Runner.String(), "epoch", strconv.FormatInt(s.Epoch, 10))
		return s.Connected && len(taken) > 0 && !taken[len(taken)-1].At.Before(e.w.serverSince)
	})
}

// Status of the daemon, by its own word.
func (e *Edge) Status() edge.Status { return e.daemon.Status() }

// StopDaemon ends the daemon; its supervisors go on without it.
func (e *Edge) StopDaemon() { e.w.t.Helper(); e.now.stop(e.w.t) }

// StartDaemon starts it again.
func (e *Edge) StartDaemon() { e.w.t.Helper(); e.start() }

// KillEdge takes a machine off the network and ends everything on it, as a power
// cut does: nobody hears of it.
func (w *World) KillEdge(name string) {
	w.t.Helper()
	w.Partition(name)
	e := w.edges[name]
	e.now.stop(w.t)
	e.supervisors.endAll()
}

// ReviveEdge switches a killed machine on again, with what is on its disk.
func (w *World) ReviveEdge(name string) *Edge {
	w.t.Helper()
	w.Heal(name)
	e := w.edges[name]
	e.start()
	return e
}

// CopyEdge is another machine that starts from a copy of an edge's disk, key and
// all, while that one runs. It is not waited for.
func (w *World) CopyEdge(from, name string) *Edge {
	w.t.Helper()
	of := w.edges[from]
	e := &Edge{Name: name, Notes: of.Notes, w: w, ip: fmt.Sprintf("10.0.1.%d", len(w.edges)+1)}
	e.backend, e.supervisors = twin.New(twin.Config{Programs: w.programs(name)}), newSupervisors(e)
	w.edges[name] = e
	path := w.path("edge-"+name, "state")
	w.must(os.Mkdir(path, 0o700))
	entries, err := os.ReadDir(of.dir.Path())
	w.must(err)
	for _, f := range entries {
		if !f.Type().IsRegular() {
			continue // journals and claims
		}
		b, err := os.ReadFile(filepath.Join(of.dir.Path(), f.Name()))
		w.must(err)
		w.must(os.WriteFile(filepath.Join(path, f.Name()), b, 0o600))
	}
	e.dir, err = state.Open(path)
	w.must(err)
	e.start()
	return e
}

// Fenced waits for the daemon to end because the server revoked the machine, and
// returns what it said.
func (e *Edge) Fenced() error {
	e.w.t.Helper()
	<-e.now.now.done
	err := e.now.now.wait()
	e.now.now = nil
	return err
}

func (e *Edge) end() {
	e.w.t.Helper()
	e.now.stop(e.w.t)
	e.supervisors.endAll()
}

// Pause is the owner's switch, over the local control socket: it returns when
// nothing runs any more.
func (e *Edge) Pause() { e.w.t.Helper(); e.order("/pause") }

// Resume takes the switch back.
func (e *Edge) Resume() { e.w.t.Helper(); e.order("/resume") }

// Probe makes the daemon look for QUIC now, as its owner does.
func (e *Edge) Probe() { e.w.t.Helper(); e.order("/probe") }

func (e *Edge) order(path string) {
	e.w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.control.Dial(ctx) }}
	res, err := (&http.Client{Transport: transport}).Post("http://bivouac-edge"+path, "", nil)
	e.w.must(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	e.w.must(err)
	if res.StatusCode != http.StatusOK || !json.Valid(body) {
		e.w.t.Fatalf("%s: %s: %s", path, res.Status, body)
	}
}

// Write puts a file into the notes.
func (e *Edge) Write(name, text string) {
	e.w.t.Helper()
	e.w.must(os.WriteFile(filepath.Join(e.Notes, name), []byte(text), 0o600))
}

// Read a file of the notes; empty when there is none.
func (e *Edge) Read(name string) string {
	b, err := os.ReadFile(filepath.Join(e.Notes, name))
	if err != nil && !os.IsNotExist(err) {
		e.w.t.Fatal(err)
	}
	return string(b)
}

// Attempts that have a directory on this machine: what is not cleaned up yet.
func (e *Edge) Attempts() (ids []string) {
	e.w.t.Helper()
	all, err := e.dir.Attempts()
	e.w.must(err)
	for _, a := range all {
		ids = append(ids, a.ID.String())
	}
	slices.Sort(ids)
	return ids
}
