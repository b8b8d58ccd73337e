package cli

import (
	"context"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// runnerID takes a machine's id or its name.
func runnerID(ctx context.Context, c *client.Client, word string) (string, error) {
	if isID(protocol.RunnerKind{}, word) {
		return word, nil
	}
	res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
	if err != nil {
		return "", err
	}
	var ids []string
	for _, r := range res.GetRunners() {
		if r.GetName() == word && r.GetState() == "ACTIVE" {
			ids = append(ids, r.GetId())
		}
	}
	return one("machine", word, ids, "bivouac edge list")
}

// principalID takes a principal's id or its name.
func principalID(ctx context.Context, c *client.Client, word string) (string, error) {
	if isID(protocol.PrincipalKind{}, word) {
		return word, nil
	}
	res, err := c.Principals.ListPrincipals(ctx, &apiv1.ListPrincipalsRequest{})
	if err != nil {
		return "", err
	}
	var ids []string
	for _, p := range res.GetPrincipals() {
		if p.GetName() == word {
			ids = append(ids, p.GetId())
		}
	}
	return one("principal", word, ids, "bivouac principal list")
}

// isID tells an id from a name by its beginning; whether it is one, exists, and
// may be seen is the server's to say.
func isID(k protocol.Kind, word string) bool { return strings.HasPrefix(word, k.Prefix()+"_") }

func one(what, word string, ids []string, list string) (string, error) {
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", protocol.Errorf(protocol.CodeNotFound, "%s %q not found: `%s` shows those that you may see", what, word, list)
	}
	return "", protocol.Errorf(protocol.CodeInvalidArgument, "%q is the name of %d: say which, by its id: %s", word, len(ids), strings.Join(ids, ", "))
}
