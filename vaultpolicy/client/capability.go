package client

import (
	"context"
	"maps"
	"slices"

	"bivouac/server/broker/secret"
)

// Lacking asks the server which capabilities a token does not have, of those that
// are wanted on each path. Paths are as a request would have them, without patterns.
func (c *Client) Lacking(ctx context.Context, as secret.Value, wanted map[string][]string) (map[string][]string, error) {
	a, err := c.Write(ctx, as, "sys/capabilities-self", map[string]any{"paths": slices.Sorted(maps.Keys(wanted))})
	if err != nil {
		return nil, err
	}
	lacking := map[string][]string{}
	for path, capabilities := range wanted {
		has := Texts(a.Data[path])
		for _, x := range capabilities {
			if !slices.Contains(has, x) && !slices.Contains(has, "root") {
				lacking[path] = append(lacking[path], x)
			}
		}
	}
	return lacking, nil
}
