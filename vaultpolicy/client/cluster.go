package client

import (
	"context"
	"errors"
	"net/http"

	"github.com/hashicorp/vault/api"

	"bivouac/server/broker/secret"
)

// sealStatus is open to everybody, and the whole server's: it has no namespace.
const sealStatus = "sys/seal-status"

// Cluster asks which cluster answers: an id that the server made when it was
// initialized, the same on each of its machines. Another server that is set up in the
// same way has another one.
func (c *Client) Cluster(ctx context.Context) (string, error) {
	whole := &Client{api: c.api.WithNamespace(""), timeout: c.timeout}
	a, err := whole.Read(ctx, secret.Value{}, sealStatus)
	if err != nil {
		return "", err
	}
	id := Text(a.Data["cluster_id"])
	switch {
	case !Flag(a.Data["initialized"]):
		return "", classify(c.Address(), "read", sealStatus, errors.New("it is not initialized"))
	case Flag(a.Data["sealed"]):
		return "", classify(c.Address(), "read", sealStatus, &api.ResponseError{StatusCode: http.StatusServiceUnavailable, Errors: []string{"it is sealed"}})
	case id == "":
		return "", classify(c.Address(), "read", sealStatus, errors.New("it does not say which cluster it is"))
	}
	return id, nil
}
