package edge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// maxSocketPath is what every system takes as the path of a Unix socket.
const maxSocketPath = 103

// ListenControl opens the control socket of a state directory, which only its
// owner can reach, for the daemon that has the directory's lock. A socket that is
// there already was left by a dead one and is replaced, also when a child of that one
// still has it open.
func ListenControl(dir *state.Dir) (net.Listener, error) {
	path := dir.Control()
	if len(path) > maxSocketPath {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the path %s is too long for a socket: choose a state directory with a shorter path", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the control socket %s cannot be made: %w", path, err)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// serveControl answers the owner's commands until ctx ends.
func (d *Daemon) serveControl(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	answer := func(do func(context.Context) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			err := do(r.Context())
			reply(w, d.Status(), err)
		}
	}
	mux.HandleFunc("GET /status", answer(func(context.Context) error { return nil }))
	mux.HandleFunc("POST /pause", answer(func(ctx context.Context) error { return d.obey(ctx, true) }))
	mux.HandleFunc("POST /resume", answer(func(ctx context.Context) error { return d.obey(ctx, false) }))
	mux.HandleFunc("POST /probe", answer(d.probeNow))
	mux.HandleFunc("POST /leave", func(w http.ResponseWriter, r *http.Request) {
		left, err := d.leave(r.Context(), r.URL.Query().Has("force"))
		reply(w, left, err)
	})
	mux.HandleFunc("GET /approvals", d.answerQuestions)
	mux.HandleFunc("POST /decide", d.answerDecision)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, peerKey{}, c) }}
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(limit) != nil {
			server.Close()
		}
	})
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// peerKey finds the connection of a request.
type peerKey struct{}

// maxDecision bounds what one command says.
const maxDecision = 64 << 10

// answerQuestions says what waits for the owner.
func (d *Daemon) answerQuestions(w http.ResponseWriter, _ *http.Request) {
	if !d.ready.Load() {
		reply(w, nil, errNotReady)
		return
	}
	reply(w, d.Questions(), nil)
}

// answerDecision takes the owner's decision. Who decides is the system's word.
func (d *Daemon) answerDecision(w http.ResponseWriter, r *http.Request) {
	var c Decision
	if err := json.NewDecoder(io.LimitReader(r.Body, maxDecision)).Decode(&c); err != nil {
		reply(w, nil, protocol.Errorf(protocol.CodeInvalidArgument, "the decision is not understood: %w", err))
		return
	}
	conn, _ := r.Context().Value(peerKey{}).(net.Conn)
	by, err := d.cfg.PeerFunc(conn)
	if err == nil && !d.ready.Load() {
		err = errNotReady
	}
	if err != nil {
		reply(w, nil, err)
		return
	}
	q, err := d.decide(c, by)
	reply(w, q, err)
}

var errNotReady = protocol.Errorf(protocol.CodeUnavailable, "bivouac-edge is just starting: try again")

// reply is an answer, or how the socket says no. Either may not arrive: the owner
// went.
func reply(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		w.WriteHeader(protocol.Codes[protocol.CodeOf(err)].HTTP)
		answer = controlError{Code: protocol.CodeOf(err), Message: err.Error()}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// controlError is how the socket says no.
type controlError struct {
	Code    protocol.Code `json:"code"`
	Message string        `json:"message"`
}

// obey makes the owner's switch durable, acts, and answers when it is done.
func (d *Daemon) obey(ctx context.Context, paused bool) error {
	if err := d.cfg.State.SetPaused(paused); err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the switch cannot be stored: %w", err)
	}
	if d.paused.Load() != paused {
		d.switchTo(paused)
	}
	if paused {
		d.awaitQuiet(ctx)
		if n := d.turns.stopping(); n > 0 {
			return protocol.Errorf(protocol.CodeUnavailable, "paused, but %d sandboxed turn(s) did not end: see `%s`", n, d.cfg.State.Command("status"))
		}
	}
	return nil
}

// leave removes the runner at the server, ends everything here, and ends Run. With
// force it does the rest also when the server cannot be told, and says so.
func (d *Daemon) leave(ctx context.Context, force bool) (left Left, err error) {
	d.leaving.Store(true) // the server may end our stream before it answers
	d.askedToLeave.Store(true)
	for again := !force; ; again = false {
		_, err := call(ctx, d.client.Leave, &runnerv1.LeaveRequest{})
		if err == nil || forgotten(err) {
			break
		}
		if !again || !transient(err) { // its answer may be lost: asked again, it says so
			if force {
				left.Untold = err.Error()
				break
			}
			d.leaving.Store(false)
			return left, err
		}
	}
	for _, a := range d.table.all() {
		d.cutOff(a, protocol.Errorf(protocol.CodeCancelled, "the owner removed this machine from its server"))
	}
	d.awaitQuiet(ctx)
	d.stop(errLeft)
	return left, nil
}
