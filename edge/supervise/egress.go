package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/worker/outward"
)

const (
	// egressInside is where sandbox B finds the sockets.
	egressInside = "/run/bivouac"
	// firstEgressPort of the loopback of sandbox B, a network of its own.
	firstEgressPort = 8471
	// maxEgress doors of one attempt, and maxEgressConns of one door at a time.
	maxEgress      = 16
	maxEgressConns = 64
)

// door is one registry that commands of sandbox B may read from: a socket here, a
// loopback port there, and nothing between them that knows more than bytes. INV-12.
type door struct {
	registry *runnerv1.Egress
	listener net.Listener
	inside   string // the socket, as sandbox B sees it
	port     int
}

// openDoors makes the sockets of the registries that the work names. A worker that
// is a function has no sandbox B that could use them.
func (a *attempt) openDoors() error {
	if len(a.turn.GetEgress()) == 0 || a.cfg.WorkerPath == "" {
		return nil
	}
	if a.cfg.RefuseEgress { // the daemon declines such a turn; a server that hides it gets no further
		return protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine lets no sandbox read packages (package_egress = false in edge.hcl), and this turn names registries")
	}
	dir := a.cfg.egressDir()
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)); err != nil { // sandboxed code may have another uid
		return err
	}
	for i, r := range a.turn.GetEgress() {
		if i == maxEgress {
			a.cfg.Log.Warn("not every registry gets a door in the sandbox", "most", maxEgress)
			break
		}
		name := strconv.Itoa(i)
		d := door{registry: r, inside: egressInside + "/" + name, port: firstEgressPort + i}
		err := withShortPath(dir, func(short string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(short, name), Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false) // by then the short path may be another's
				d.listener = netutil.LimitListener(l, maxEgressConns)
			}
			return err
		})
		if err == nil {
			a.doors = append(a.doors, d)
			err = os.Chmod(filepath.Join(dir, name), 0o666)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closeDoors is for an attempt that ended before it served them.
func (a *attempt) closeDoors() {
	for _, d := range a.doors {
		_ = d.listener.Close() // closed already, where they were served
	}
}

// serveDoors answers what comes from sandbox B, until ctx ends. What comes is
// hostile: it is read by net/http with bounds, and judged by the broker.
func (a *attempt) serveDoors(ctx context.Context) error {
	if len(a.doors) == 0 {
		return nil
	}
	failed := make(chan error, len(a.doors))
	servers := make([]*http.Server, 0, len(a.doors))
	for _, d := range a.doors {
		s := &http.Server{
			Handler: a.doorHandler(d), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
			BaseContext: func(net.Listener) context.Context { return ctx },
			ErrorLog:    slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug),
		}
		servers = append(servers, s)
		a.open.Go(func() { failed <- s.Serve(d.listener) })
	}
	<-ctx.Done()
	var err error
	for _, s := range servers {
		err = errors.Join(err, s.Close())
	}
	a.open.Wait()
	for range servers {
		if serr := <-failed; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
	}
	return err
}

// doorHandler passes requests to the relay. While the attempt is held they wait, as
// everything does that may have an effect. INV-20.
func (a *attempt) doorHandler(d door) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.arrive() {
			http.Error(w, "the attempt is over", http.StatusServiceUnavailable)
			return
		}
		defer a.depart()
		if err := a.permit(r.Context()); err != nil {
			http.Error(w, "the attempt is over", http.StatusServiceUnavailable)
			return
		}
		a.relay.Fetch(w, r, d.registry.GetName())
	})
}

// lead gives a process of sandbox B the doors, and the variables by which package
// tools find them. It is for commands: the workspace tools need none.
func (a *attempt) lead(p *sandbox.Process) {
	if len(a.doors) == 0 {
		return
	}
	p.Binds = append(p.Binds, sandbox.Bind{Host: a.cfg.egressDir(), Inside: egressInside})
	argv := []string{WorkerInside, outward.Verb}
	for _, d := range a.doors {
		argv = append(argv, fmt.Sprintf("%d=%s", d.port, d.inside))
	}
	p.Argv = append(append(argv, "--"), p.Argv...)
	p.Env = append(p.Env, egressEnv(a.doors, p.Env)...)
}

// egressEnv are the variables. Modules come from the owner's cache first, and from a
// registry after it; npm and git know one address for each.
func egressEnv(doors []door, before []string) (env []string) {
	var proxies []string
	for _, kv := range before {
		if v, ok := strings.CutPrefix(kv, "GOPROXY="); ok && v != "off" && v != "direct" {
			proxies = []string{v}
		}
	}
	own, npm, rewrites := len(proxies), false, 0
	for _, d := range doors {
		at := "http://127.0.0.1:" + strconv.Itoa(d.port)
		switch d.registry.GetProtocol() {
		case "go":
			proxies = append(proxies, at)
		case "npm":
			if !npm { // npm has one registry; the first that is named
				env = append(env, "npm_config_registry="+at+"/", "npm_config_replace_registry_host=always", "npm_config_offline=false",
					"npm_config_cache="+homeInside+"/.npm", "npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false")
			}
			npm = true
		case "git":
			n := strconv.Itoa(rewrites)
			env = append(env, "GIT_CONFIG_KEY_"+n+"=url."+at+"/.insteadOf", "GIT_CONFIG_VALUE_"+n+"="+strings.TrimSuffix(d.registry.GetUrl(), "/")+"/")
			rewrites++
		}
	}
	if len(proxies) > own {
		env = append(env, "GOPROXY="+strings.Join(proxies, ","))
	}
	if rewrites > 0 {
		env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(rewrites), "GIT_TERMINAL_PROMPT=0")
	}
	return env
}
