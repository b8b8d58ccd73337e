package intentions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/consul"
	"bivouac/consul/settings"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
)

// File is what broker.hcl says of Consul: its consul block, and the names under which
// paths govern the rest of it, and the broker itself where it is a service.
type File struct {
	settings.Config
	Destinations []string
}

// ErrNoConsul is a broker.hcl without a consul block: its paths are files.
var ErrNoConsul = errors.New("there is no consul block")

// The shape of broker.hcl as far as names go; everything else is remain.
type brokerFile struct {
	Models       []named `hcl:"model,block"`
	Destinations []named `hcl:"destination,block"`
	Consul       *struct {
		Body hcl.Body `hcl:",remain"`
	} `hcl:"consul,block"`
	Remain hcl.Body `hcl:",remain"`
}

type named struct {
	Name   string   `hcl:"name,label"`
	Remain hcl.Body `hcl:",remain"`
}

// ReadFile reads broker.hcl for whoever sets Consul up or examines it. Files that it
// names need not be on this machine, because an admin may sit elsewhere. What else stands
// in it is the broker's to judge.
func ReadFile(path string, getenv func(string) string) (File, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return File{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration cannot be read: %w", err)
	}
	if err := filemode.Policy(path); err != nil {
		return File{}, err
	}
	parsed, diags := hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	var b brokerFile
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(parsed.Body, nil, &b)...)
	}
	var problems []error
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			place := path
			if d.Subject != nil {
				place = fmt.Sprintf("%s:%d", path, d.Subject.Start.Line)
			}
			problems = append(problems, fmt.Errorf("%s: %s: %s", place, d.Summary, d.Detail))
		}
	}
	if len(problems) > 0 {
		return File{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration is refused:\n%w", errors.Join(problems...))
	}
	if b.Consul == nil {
		return File{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%s: %w", path, ErrNoConsul)
	}
	c, err := settings.DecodeElsewhere(settings.Broker, b.Consul.Body, filepath.Dir(path), getenv)
	if err != nil {
		return File{}, err
	}
	f := File{Config: c}
	for _, m := range b.Models {
		f.Destinations = append(f.Destinations, consul.ModelDestination(m.Name))
	}
	for _, d := range b.Destinations {
		f.Destinations = append(f.Destinations, d.Name)
	}
	if c.Service != nil {
		f.Destinations = append(f.Destinations, c.Service.Name)
	}
	slices.Sort(f.Destinations)
	f.Destinations = slices.Compact(f.Destinations)
	return f, nil
}
