package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/scripted"
)

// startProvider runs the scripted provider and returns its address.
func (d *dev) startProvider(ctx context.Context, g *errgroup.Group) (string, error) {
	script, err := d.script()
	if err != nil {
		return "", err
	}
	if d.modelKeyFile == "" {
		d.modelKeyFile = d.path("model-key")
		if err := newKey(d.modelKeyFile); err != nil {
			return "", err
		}
	}
	key, err := scripted.KeyFromFile(d.modelKeyFile)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", d.model)
	if err != nil {
		return "", taken("model", d.model, err)
	}
	p := scripted.New(scripted.Config{Script: script, Key: key})
	g.Go(func() error { return p.Run(ctx, l) })
	return l.Addr().String(), nil
}

// showScript prints the script that the provider would follow.
func (d *dev) showScript() error {
	src, err := defaults.ReadFile("defaults/model.hcl")
	if d.modelScript != "" {
		if _, err := d.script(); err != nil {
			return err
		}
		src, err = os.ReadFile(d.modelScript)
	}
	if err == nil {
		_, err = d.out.Write(src)
	}
	return err
}

func (d *dev) script() (*scripted.Script, error) {
	if d.modelScript != "" {
		return scripted.Load(d.modelScript)
	}
	src, err := defaults.ReadFile("defaults/model.hcl")
	if err != nil {
		return nil, err
	}
	return scripted.Parse(src, "defaults/model.hcl")
}

// startBroker makes the keyring and broker.hcl the first time, and a code for the
// server until it has enrolled.
func (d *dev) startBroker(ctx context.Context, provider string) error {
	data, conf := d.path("broker"), d.path("broker", "broker.hcl")
	if _, err := os.Stat(filepath.Join(data, "keyring.age")); errors.Is(err, fs.ErrNotExist) {
		if err := d.tree.once(ctx, "bivouac-broker", "init", "--data", data); err != nil {
			return err
		}
		if err := d.writeBrokerFiles(provider); err != nil {
			return err
		}
	} else if len(d.destinations) > 0 {
		fmt.Fprintf(d.err, "note: --destination is for the first start; say it in %s and %s now\n", conf, filepath.Join(data, "paths"))
	}
	if _, err := os.Stat(d.path("server", "server.crt")); errors.Is(err, fs.ErrNotExist) {
		out, err := d.tree.output(ctx, "bivouac-broker", "server-code", "--data", data)
		if err != nil {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-broker server-code failed: %s", lastLines(out, err))
		}
		if err := writePrivate(d.path("server-code"), out); err != nil {
			return err
		}
	}
	return d.tree.spawn("bivouac-broker", "run", "--data", data, "--config", conf, "--listen", d.broker, "--server", d.runner)
}

// writeBrokerFiles writes what the broker may reach: the scripted model for both
// agents, and the destinations that were given for the assistant.
func (d *dev) writeBrokerFiles(provider string) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# What the broker of bivouac dev may reach. Yours to change: it is written once.
# Restart bivouac dev after a change; caps { … } and the files in paths are followed
# while it runs.

model "scripted" {
  base_url        = "http://%s/v1"
  allow_private   = true
  model           = "scripted"
  credential      = "scripted-key"
  data_boundaries = ["personal", "internal"]
  price {
    input_usd_per_mtok  = 1
    output_usd_per_mtok = 2
  }
}
`, provider)
	allow := map[string][]string{"model-scripted": {"assistant", "coder"}}
	for _, text := range d.destinations {
		name, rest, ok := strings.Cut(text, "=")
		url, credential, _ := strings.Cut(rest, ",")
		if !ok || name == "" || url == "" {
			return protocol.Errorf(protocol.CodeInvalidArgument, "--destination %q: write NAME=URL or NAME=URL,CREDENTIAL", text)
		}
		fmt.Fprintf(&b, "\ndestination %q {\n  url           = %q\n  allow_private = true\n", name, url)
		if credential != "" {
			fmt.Fprintf(&b, "  credential %q {}\n", credential)
		}
		b.WriteString("}\n")
		allow[name] = []string{"assistant"}
	}
	if err := writePrivate(d.path("broker", "broker.hcl"), []byte(b.String())); err != nil {
		return err
	}
	for name, agents := range allow {
		var sources []string
		for _, agent := range agents {
			sources = append(sources, fmt.Sprintf("  { Name = \"agent-%s\", Action = \"allow\" },\n", agent))
		}
		text := fmt.Sprintf("Kind = \"service-intentions\"\nName = %q\nSources = [\n%s]\n", name, strings.Join(sources, ""))
		if err := writePrivate(d.path("broker", "paths", name+".hcl"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}
