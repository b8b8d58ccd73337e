//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"bivouac/test/exectrace"
	"bivouac/test/process"
)

// demo is one run: its directories, its processes, and what it counted.
type demo struct {
	bin     string
	dir     string // everything of this run
	state   string // what the product keeps
	login   string // the person's login
	home    string // the person's files
	secrets string // the two secrets, as a person would hold them; not scanned

	modelKey, toolKey string
	weather           *http.Server
	weatherURL        string
	dev, edge         *process.Process

	turns, completed, approvals int
	events                      bytes.Buffer // as the API shows them, JSON
	all                         bool         // print them
}

func prepare(bin, dir string) (*demo, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	absBin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(abs); err != nil {
		return nil, err
	}
	d := &demo{
		bin: absBin, dir: abs, state: filepath.Join(abs, "state"), login: filepath.Join(abs, "login"),
		home: filepath.Join(abs, "home"), secrets: filepath.Join(abs, "secrets"),
		modelKey: "mk-" + rand.Text(), toolKey: "tk-" + rand.Text(),
	}
	for _, sub := range []string{d.state, d.login, d.home, d.secrets, filepath.Join(d.home, "notes")} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return nil, err
		}
	}
	for name, text := range map[string]string{
		filepath.Join(d.secrets, "model-key"):     d.modelKey + "\n",
		filepath.Join(d.secrets, "weather-token"): d.toolKey + "\n",
		filepath.Join(d.home, "notes/trip.txt"):   "Bergen, three days, hiking\n",
		filepath.Join(d.home, "notes/gear.txt"):   "tent, stove, rain jacket\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return d, d.serveWeather()
}

// serveWeather is the small local API that wants a credential.
func (d *demo) serveWeather() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	d.weatherURL = "http://" + l.Addr().String()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/forecast", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+d.toolKey {
			http.Error(w, "no such key", http.StatusUnauthorized)
			return
		}
		// An upstream that echoes the key: the broker must take it out.
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{
			"city": r.URL.Query().Get("city"), "sky": "light rain", "authorised_as": r.Header.Get("Authorization"),
		})
	})
	d.weather = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go d.weather.Serve(l) // ends with Close
	return nil
}

// traced is a binary of the product whose executions are recorded.
func (d *demo) traced(name string, args ...string) *exec.Cmd {
	cmd, err := exectrace.Command(filepath.Join(d.dir, "exec.jsonl"), filepath.Join(d.bin, name), args...)
	if err != nil {
		return &exec.Cmd{Err: err} // which Start reports
	}
	cmd.Env = []string{
		"PATH=" + d.bin + ":" + os.Getenv("PATH"), "HOME=" + d.home, "TMPDIR=" + os.TempDir(),
		"BIVOUAC_CONFIG=" + d.login, "LANG=C.UTF-8",
	}
	return cmd
}

// spawn starts a part of the product that runs until it is ended.
func (d *demo) spawn(name string, args ...string) (*process.Process, error) {
	p := process.New(name, filepath.Join(d.state, "logs", name+".out"), func() *exec.Cmd { return d.traced(name, args...) })
	return p, p.Start()
}

// cli runs one command of a person and returns what it printed.
func (d *demo) cli(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := d.traced("bivouac", args...)
	cmd.Dir = dir
	return process.Output(ctx, cmd)
}

// cliJSON decodes the one document that a command prints.
func (d *demo) cliJSON(ctx context.Context, into any, args ...string) error {
	out, err := d.cli(ctx, d.home, append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// start brings up server and broker, adds a runner by a real join code, and gives
// the agents what they need.
func (d *demo) start(ctx context.Context) (err error) {
	began := time.Now()
	d.dev, err = d.spawn("bivouac", "dev", "--data", d.state, "--no-edge", "--public", "127.0.0.1:0", "--runner", "127.0.0.1:0", "--broker", "127.0.0.1:0",
		"--model", "127.0.0.1:0", "--model-script", "test/demo/testdata/model.hcl", "--model-key-file", filepath.Join(d.secrets, "model-key"),
		"--destination", "weather="+d.weatherURL+",weather-token")
	if err != nil {
		return err
	}
	if err := d.until(ctx, "the server is ready", func() error {
		_, err := d.cli(ctx, d.home, "whoami")
		return err
	}); err != nil {
		return err
	}
	say("server and broker are ready after %d ms; they are processes of their own", time.Since(began).Milliseconds())
	return d.addRunner(ctx)
}

func (d *demo) addRunner(ctx context.Context) error {
	var invite struct{ Code, Command string }
	if err := d.cliJSON(ctx, &invite, "edge", "invite", "--name", "laptop"); err != nil {
		return err
	}
	goroot, err := goRoot()
	if err != nil {
		return err
	}
	words := strings.Fields(invite.Command) // bivouac-edge join URL CODE
	args := append(words[1:], "--name", "laptop", "--state", filepath.Join(d.dir, "laptop"),
		"--allow-folder", "notes="+filepath.Join(d.home, "notes")+":rw", "--toolchain", "go="+goroot)
	began := time.Now()
	if _, err := process.Output(ctx, d.traced(words[0], args...)); err != nil {
		return err
	}
	if d.edge, err = d.spawn("bivouac-edge", "run", "--state", filepath.Join(d.dir, "laptop")); err != nil {
		return err
	}
	if err := d.until(ctx, "the runner is connected", func() error {
		var list struct {
			Runners []struct {
				Connected bool
				Boundary  string
			}
		}
		if err := d.cliJSON(ctx, &list, "edge", "list"); err != nil {
			return err
		}
		if len(list.Runners) != 1 || !list.Runners[0].Connected {
			return fmt.Errorf("not yet: %+v", list)
		}
		return nil
	}); err != nil {
		return err
	}
	say("the runner \"laptop\" joined with a code and is connected after %d ms", time.Since(began).Milliseconds())
	return d.configure(ctx)
}

// goRoot is the toolchain that the sandboxed code sees.
func goRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	return strings.TrimSpace(string(out)), err
}

func (d *demo) configure(ctx context.Context) error {
	for _, args := range [][]string{
		{"agents", "apply", "test/demo/testdata/assistant.hcl"},
		{"credential", "set", "weather-token", "--file", filepath.Join(d.secrets, "weather-token")},
		{"grant", "create", "--agent", "assistant", "--credential", "weather-token"},
	} {
		if _, err := d.cli(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}

// until tries again for up to twenty seconds.
func (d *demo) until(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for: %s: %w", what, err)
		case <-d.dev.Gone():
			return fmt.Errorf("bivouac dev ended: %w\n%s", err, d.dev.Tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (d *demo) stop() error {
	return errors.Join(d.edge.End(), d.dev.End())
}

func (d *demo) close() error {
	err := d.stop()
	_ = d.weather.Close()
	return err
}

func say(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }
