package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/hashicorp/vault/api"
)

// What stands between the broker and the server answers too: an ingress with its
// default page, a gateway without a route, a portal that says 200 to everything. None
// of it says anything about a grant, so an answer counts when it has the server's own
// form, and is none otherwise, whatever its status.

// strange is an answer that is not the server's.
type strange struct{ status int }

func (s *strange) Error() string {
	return fmt.Sprintf("an answer of status %d that is not the server's", s.status)
}

// errDeleted is the server's 404 for what was there once: it has a body like a success.
var errDeleted = errors.New("its newest version was deleted")

// frame is what the server puts around every answer but those of bare.
var frame = []string{"request_id", "lease_id", "lease_duration", "data", "auth"}

// bare answers come without a frame; each has at least these fields.
var bare = map[string][]string{
	sealStatus:   {"initialized", "sealed"},
	"sys/leader": {"ha_enabled"},
}

// open reads an answer whole, whatever its status, and refuses one that is not the
// server's.
func open(path string, resp *api.Response, err error) (*api.Secret, error) {
	if resp == nil || resp.Body == nil {
		return nil, err
	}
	defer resp.Body.Close() // it was read
	var said *api.ResponseError
	switch {
	case errors.As(err, &said) && said.Errors == nil:
		body, _ := io.ReadAll(resp.Body) // in memory: the library has read it
		if said.StatusCode == http.StatusNotFound && deleted(body) {
			return nil, errDeleted
		}
		return nil, &strange{said.StatusCode}
	case err != nil:
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, err
	case len(body) == 0 && resp.StatusCode == http.StatusNoContent && resp.Request.Method != http.MethodGet:
		return nil, nil // done, and nothing to say
	}
	want, ok := bare[path]
	if !ok {
		want = frame
	}
	if resp.StatusCode != http.StatusOK || !has(body, want) {
		return nil, &strange{resp.StatusCode}
	}
	return api.ParseSecret(bytes.NewReader(body))
}

// has reports a JSON object with all of these fields.
func has(body []byte, fields []string) bool {
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil {
		return false
	}
	for _, f := range fields {
		if _, ok := object[f]; !ok {
			return false
		}
	}
	return true
}

// deleted reports the server's word about a version that is there no more.
func deleted(body []byte) bool {
	if !has(body, frame) {
		return false
	}
	var said struct {
		Data struct {
			Data     any `json:"data"`
			Metadata struct {
				Version int `json:"version"`
			} `json:"metadata"`
		} `json:"data"`
	}
	return json.Unmarshal(body, &said) == nil && said.Data.Data == nil && said.Data.Metadata.Version > 0
}

// Strange is the error for an answer that has the server's form and cannot be its
// answer to what was asked.
func (c *Client) Strange(verb, path string) error {
	return classify(c.Address(), verb, path, &strange{http.StatusOK})
}
