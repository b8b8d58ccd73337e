package broker

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/hcl/v2"

	"bivouac/edge/protocol"
)

const (
	// settle lets an editor finish before the file is read.
	settle = 50 * time.Millisecond
	// reread finds what a lost notification hid.
	reread = 15 * time.Second
)

// runCaps follows the caps of the broker's own file until ctx ends. What cannot be
// read, or says nothing of caps any more, leaves those in force that are: a file
// that is being written must not open what it closes.
func (b *Broker) runCaps(ctx context.Context) error {
	file := b.ports.ConfigFile
	if file == "" {
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(filepath.Dir(file)) // editors replace files
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the broker's file %s cannot be watched: %w", file, err)
	}
	seen := ""
	next := time.NewTimer(0) // what changed since the start
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-watcher.Events:
			if filepath.Clean(e.Name) == filepath.Clean(file) {
				next.Reset(settle)
			}
		case err := <-watcher.Errors:
			b.log.Warn("watching the broker's file", "error", err)
			next.Reset(settle)
		case <-next.C:
			next.Reset(reread)
			seen = b.rereadCaps(file, seen)
		}
	}
}

// rereadCaps sets the caps of a file that differs from what was seen of it.
func (b *Broker) rereadCaps(file, seen string) string {
	src, err := os.ReadFile(file)
	text := string(src)
	if err != nil {
		text = err.Error()
	}
	if text == seen {
		return seen
	}
	var c Config
	if err == nil {
		c, err = ParseConfig(src, file)
	}
	before := b.Caps().plain()
	switch {
	case err == nil && !c.capsGiven && seen == "":
		return text // it never had any
	case err == nil && !c.capsGiven:
		b.log.Error("the broker's file has no caps any more; those in force stay until the next start", "file", file)
		return text
	case err == nil:
		err = b.SetCaps(c.Caps)
	}
	if err != nil {
		b.log.Error("the broker's file is refused; the caps in force stay", "file", file, "error", err)
	} else if !reflect.DeepEqual(before, b.Caps().plain()) {
		b.log.Info("caps read anew; models and destinations are read at the next start", "file", file)
	}
	return text
}

// plain caps do not know where they stand.
func (c Caps) plain() Caps {
	c.Range = hcl.Range{}
	c.Tenant = slices.Clone(c.Tenant)
	for i := range c.Tenant {
		c.Tenant[i].Range = hcl.Range{}
	}
	return c
}
