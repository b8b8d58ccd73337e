package cli

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/finding"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

//go:embed defaults
var defaults embed.FS

// dev is everything on one machine, as processes of their own.
type dev struct {
	*app
	data         string
	public       string
	runner       string
	broker       string
	model        string
	modelScript  string
	printScript  bool
	modelKeyFile string
	destinations []string
	noEdge       bool
	bare         bool // no address is given
	folders      []string
	tree         *tree
	began        time.Time
}

func (a *app) devCommand() *cobra.Command {
	d := &dev{app: a}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Server, broker and one runner on this machine, until Ctrl-C",
		Long: `Starts everything as processes of their own on SQLite and a keyring file, logs you
in, and keeps its state in --data. The first start makes the keys, the agents
"assistant" and "coder", and joins this machine as a runner. A later start that names
no address is at those of the last one (addresses.json in --data).

With --data another deployment begins. Your login stays with the one that it is for;
the other one's lies beside its state, and is used with BIVOUAC_CONFIG or --config.

The model is a scripted provider that answers from --model-script: HCL, one rule an
answer; --print-model-script prints the one in use, which is also an example. README
says how to use a real model.`,
		Example: "  bivouac dev --allow-folder notes=$HOME/notes:rw\n  bivouac dev --data /tmp/try --public 127.0.0.1:0 --runner 127.0.0.1:0 --broker 127.0.0.1:0 --model 127.0.0.1:0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.printScript {
				return d.showScript()
			}
			d.bare = !slices.ContainsFunc(slices.Collect(maps.Keys(devPorts)), cmd.Flags().Changed)
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.data, "data", defaultDevDir(), "directory for all state and logs")
	f.StringVar(&d.public, "public", "127.0.0.1:7400", "address of the API, loopback only")
	f.StringVar(&d.runner, "runner", "127.0.0.1:7401", "address for runners, TCP and UDP; for other machines one that they reach, as --broker")
	f.StringVar(&d.broker, "broker", "127.0.0.1:7402", "address of the broker, TCP and UDP")
	f.StringVar(&d.model, "model", "127.0.0.1:7403", "address of the scripted provider")
	f.StringVar(&d.modelScript, "model-script", "", "script of the scripted provider, in HCL (default: the one that --print-model-script prints)")
	f.BoolVar(&d.printScript, "print-model-script", false, "print that script, and start nothing")
	f.StringVar(&d.modelKeyFile, "model-key-file", "", "key that the scripted provider demands (default: a new one)")
	f.StringArrayVar(&d.destinations, "destination", nil, "NAME=URL[,CREDENTIAL]: an http destination for the agent \"assistant\" (repeatable)")
	f.BoolVar(&d.noEdge, "no-edge", false, "do not make this machine a runner")
	f.StringArrayVar(&d.folders, "allow-folder", nil, "NAME=PATH[:rw]: a folder agents may use on this runner (repeatable; first start only)")
	return cmd
}

func defaultDevDir() string { return devdir.Default() }

func (d *dev) path(parts ...string) string {
	return filepath.Join(append([]string{d.data}, parts...)...)
}

func (d *dev) run(ctx context.Context) (err error) {
	d.began = time.Now()
	if d.data, err = filepath.Abs(d.data); err != nil {
		return err
	}
	release, err := d.lock()
	if err != nil {
		return err
	}
	defer release()
	if err := d.checkEdge(); err != nil {
		return err
	}
	if err := d.addresses(); err != nil {
		return err
	}
	if what, inside := finding.Told(d.runner, d.broker); !inside {
		fmt.Fprintf(d.err, "note: %s; say an address of this machine for both, such as --runner IP:7401 --broker IP:7402\n", what)
	}
	if d.tree, err = newTree(d.path("logs")); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.tree.watch(ctx) })
	g.Go(func() error {
		runtime.LockOSThread() // children follow this thread: see childAttr
		err := d.start(ctx, g)
		if err == nil {
			<-ctx.Done()
		} else if lost := d.tree.failure(); lost != nil && ctx.Err() == nil {
			err = lost // which is why the start failed
		}
		return errors.Join(err, d.tree.end())
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // Ctrl-C
	}
	return err
}

// start brings the parts up in the order in which they need each other.
func (d *dev) start(ctx context.Context, g *errgroup.Group) error {
	provider, err := d.startProvider(ctx, g)
	if err != nil {
		return err
	}
	if err := d.startBroker(ctx, provider); err != nil {
		return err
	}
	if err := d.startServer(ctx); err != nil {
		return err
	}
	c, err := d.logIn(ctx)
	if err != nil {
		return err
	}
	if err := d.firstTime(ctx, c); err != nil {
		return err
	}
	fmt.Fprintf(d.err, "ready after %d ms\n  API      http://%s\n  runners  https://%s\n  state    %s\n  broker   %s\n",
		time.Since(d.began).Milliseconds(), d.public, d.runner, d.data, d.path("broker", "broker.hcl"))
	if !d.noEdge {
		if err := d.startEdge(ctx, g, c); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.err, "\ntry, in another terminal:\n  %sbivouac chat \"which folders do you have?\"\n\nCtrl-C ends everything.\n", d.configPrefix())
	return nil
}

func (d *dev) configPrefix() string {
	if d.config == defaultConfigDir() && os.Getenv("BIVOUAC_CONFIG") == "" {
		return ""
	}
	return "BIVOUAC_CONFIG=" + d.config + " "
}

func (d *dev) startServer(ctx context.Context) error {
	data := d.path("server")
	common := []string{"--data", data}
	token := d.path("token")
	if err := d.tree.once(ctx, "bivouac-server", append([]string{"bootstrap", "--principal", "me", "--token-file", token}, common...)...); err != nil {
		return err
	}
	if err := d.tree.spawn("bivouac-server", append([]string{"--public", d.public, "--runners", d.runner, "--broker", d.broker,
		"--broker-code-file", d.path("server-code")}, common...)...); err != nil {
		return err
	}
	return d.tree.until(ctx, "bivouac-server", func() error { return ready(ctx, "http://"+d.public+"/readyz") })
}

// logIn keeps a login for this server in the person's directory.
func (d *dev) logIn(ctx context.Context) (*client.Client, error) {
	f, err := os.Open(d.path("token"))
	if err != nil {
		return nil, err
	}
	token, err := oneLine(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	l := login{Server: "http://" + d.public, Token: secret(token)}
	c, err := client.New(client.Config{URL: l.Server, Token: token})
	if err != nil {
		return nil, err
	}
	who, err := c.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
	if err != nil {
		return nil, err
	}
	l.RootFingerprint = who.GetRootFingerprint()
	d.apart(l)
	d.api, d.login = c, l
	return c, writeLogin(d.config, l)
}

// apart keeps a login that the person has for another deployment: this one's goes
// beside its own state then, and both work.
func (d *dev) apart(l login) {
	old, err := readLogin(d.config)
	if err != nil || old.Server == l.Server && old.RootFingerprint == l.RootFingerprint {
		return
	}
	fmt.Fprintf(d.err, "note: your login in %s is for another deployment (%s) and stays as it is; this one has its own in %s:\n"+
		"  put BIVOUAC_CONFIG=%s before a command to use it, or make it yours instead with\n  bivouac login %s --token-file %s\n",
		d.config, plain(old.Server), d.path("login"), d.path("login"), l.Server, d.path("token"))
	d.config = d.path("login")
}

// firstTime sets the model key and the default agents, where they are missing.
func (d *dev) firstTime(ctx context.Context, c *client.Client) error {
	f, err := os.Open(d.modelKeyFile)
	if err != nil {
		return err
	}
	key, err := oneLine(f)
	f.Close()
	if err != nil {
		return err
	}
	if err := d.quietly(func() error { return d.putCredential(ctx, c, "scripted-key", secret(key)) }); err != nil {
		return err
	}
	have, err := c.Agents.ListAgents(ctx, &apiv1.ListAgentsRequest{})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, a := range have.GetAgents() {
		known[a.GetName()] = true
	}
	for _, name := range []string{"assistant", "coder"} {
		if known[name] {
			continue
		}
		src, err := defaults.ReadFile("defaults/" + name + ".hcl")
		if err != nil {
			return err
		}
		if _, err := c.Agents.ApplyAgent(ctx, &apiv1.ApplyAgentRequest{Filename: name + ".hcl", Source: string(src)}); err != nil {
			return err
		}
		if _, err := c.Grants.CreateGrant(ctx, &apiv1.CreateGrantRequest{Agent: name}); err != nil {
			return err
		}
	}
	return nil
}

// quietly runs something that would print its result.
func (d *dev) quietly(fn func() error) error {
	out := d.out
	d.out = new(strings.Builder)
	defer func() { d.out = out }()
	return fn()
}

// newKey makes a key for the scripted provider.
func newKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return writePrivate(path, []byte("sk-"+rand.Text()+"\n"))
}
