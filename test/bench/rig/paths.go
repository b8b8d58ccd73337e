package rig

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"bivouac/consul"
	"bivouac/server/broker"
)

// Destination under which paths govern the rig's model, and the one request that they let
// through.
const (
	Destination = "model-main"
	CallPath    = "/v1/chat/completions"
)

// Paths say which agents reach the rig's model.
type Paths interface {
	// Open is the broker's port.
	Open(cfg broker.Config, log *slog.Logger) (broker.Paths, error)
	// Allow makes these agents the only ones. It returns when that is written down.
	Allow(agents ...string) error
}

// files are Paths in the folder of this name.
type files string

func (files) Open(cfg broker.Config, log *slog.Logger) (broker.Paths, error) {
	return consul.OpenDirectory(cfg.Path(cfg.Paths), log)
}

func (f files) Allow(agents ...string) error {
	text := fmt.Sprintf("Kind = \"service-intentions\"\nName = %q\nSources = [\n", Destination)
	for _, a := range agents {
		text += fmt.Sprintf("  { Name = \"agent-%s\", Permissions = [{ Action = \"allow\", HTTP = { PathExact = %q, Methods = [\"POST\"] } }] },\n", a, CallPath)
	}
	dir := filepath.Join(string(f), "paths")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := filepath.Join(dir, Destination+".hcl")
	if err := os.WriteFile(name+".tmp", []byte(text+"]\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
}
