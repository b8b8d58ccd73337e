//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"bivouac/test/secretscan"
)

// count asks the product, not the demo's own memory, and looks for the secrets in
// all that the processes left. INV-17.
func (d *demo) count(ctx context.Context) error {
	fmt.Println("\n3. what is left behind")
	var list struct{ Turns []turnView }
	if err := d.cliJSON(ctx, &list, "turns"); err != nil {
		return err
	}
	for _, t := range list.Turns {
		d.turns++
		if t.State == "COMPLETED" {
			d.completed++
		}
	}
	var unknown struct{ Actions []any }
	if err := d.cliJSON(ctx, &unknown, "unknown"); err != nil {
		return err
	}
	say("turns %d, completed %d, effects of unknown outcome %d", d.turns, d.completed, len(unknown.Actions))
	return nil
}

// secretHits looks for both secrets in everything but the two files in which the
// person holds them: databases, logs, journals, artifacts, the runner's state,
// the events as the API shows them, and what every executed program was given.
func (d *demo) secretHits(context.Context) ([]secretscan.Hit, error) {
	s := secretscan.New(secretscan.Secret{Name: "the provider key", Value: d.modelKey}, secretscan.Secret{Name: "the tool credential", Value: d.toolKey})
	hits := s.Bytes("the events", d.events.Bytes())
	for _, root := range []string{d.state, d.login, d.home, filepath.Join(d.dir, "laptop")} {
		h, err := s.Files(root)
		if err != nil {
			return nil, err
		}
		hits = append(hits, h...)
	}
	h, err := s.Executions(filepath.Join(d.dir, "exec.jsonl"))
	if err != nil {
		return nil, err
	}
	say("looked for two secrets in every file, event, argument and environment: %d found", len(hits)+len(h))
	return append(hits, h...), nil
}
