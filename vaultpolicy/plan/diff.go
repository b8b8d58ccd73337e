package plan

import (
	"context"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// Difference is an item that the server does not have as it must be.
type Difference struct {
	Item
	// Missing: it is not there. Otherwise Changes says what it says otherwise.
	Missing bool
	Changes []Change
}

// Diff is everything that differs, in the order of the plan.
type Diff []Difference

// Diff compares the server with the plan. It changes nothing.
func (p Plan) Diff(ctx context.Context, c *client.Client, as secret.Value) (Diff, error) {
	r := reader{c: c, as: as, lists: map[string]map[string]any{}}
	var out Diff
	for _, item := range p.Items {
		have, found, err := r.read(ctx, item)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeOf(err), "%s cannot be compared: %w", item.Title(), err)
		}
		if !found {
			out = append(out, Difference{Item: item, Missing: true})
		} else if ch := item.changes(have); len(ch) > 0 {
			out = append(out, Difference{Item: item, Changes: ch})
		}
	}
	return out, nil
}

// reader reads lists once.
type reader struct {
	c     *client.Client
	as    secret.Value
	lists map[string]map[string]any
}

func (r reader) read(ctx context.Context, i Item) (have map[string]any, found bool, err error) {
	if i.ReadPath == "" {
		have, found, err := r.get(ctx, i.Path)
		if i.Unless != "" && client.KindOf(err) == client.Invalid && strings.Contains(err.Error(), i.Unless) {
			return nil, false, nil
		}
		return have, found, err
	}
	list, ok := r.lists[i.ReadPath]
	if !ok {
		if list, _, err = r.get(ctx, i.ReadPath); err != nil {
			return nil, false, err
		}
		r.lists[i.ReadPath] = list
	}
	have, found = list[i.Key].(map[string]any)
	return have, found, nil
}

func (r reader) get(ctx context.Context, path string) (map[string]any, bool, error) {
	a, err := r.c.Read(ctx, r.as, path)
	switch client.KindOf(err) {
	case "":
		return a.Data, err == nil, err
	case client.Absent, client.Unmounted:
		return nil, false, nil
	}
	return nil, false, err
}

// retryFor is how long a new mount may say that it is not ready yet.
const retryFor = 15 * time.Second

// Apply makes what differs as the plan says. What was applied before a failure
// stays: applying again goes on from there. done is called after each.
func (d Diff) Apply(ctx context.Context, c *client.Client, as secret.Value, done func(Difference)) error {
	for _, x := range d {
		if x.Fixed && !x.Missing {
			return protocol.Errorf(protocol.CodeConflict,
				"%s is there with other content (%s) and is not changed: whatever it holds belongs to somebody; name another in the vault block of broker.hcl", x.Title(), x.Changes)
		}
	}
	for _, x := range d {
		if err := write(ctx, c, as, x); err != nil {
			return protocol.Errorf(protocol.CodeOf(err), "%s cannot be applied: %w", x.Title(), err)
		}
		if done != nil {
			done(x)
		}
	}
	return nil
}

func write(ctx context.Context, c *client.Client, as secret.Value, x Difference) error {
	deadline := time.Now().Add(retryFor)
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		_, err := c.Write(ctx, as, x.Path, x.body(x.Missing))
		// A KV mount of version 2 is made in two steps, and says so in between.
		early := client.KindOf(err) == client.Invalid && strings.Contains(err.Error(), "Upgrading")
		if !early || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c Change) String() string {
	return fmt.Sprintf("%s is %s, not %s", c.Field, show(c.Have), show(c.Want))
}
