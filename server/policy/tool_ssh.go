package policy

import (
	"regexp"
	"strings"
	"time"

	"bivouac/edge/runtime/runtimev1"

	"github.com/hashicorp/hcl/v2"
)

// SSHTool is one command that the broker's file declares for a host. What it runs stands
// there, and no definition can widen it.
type SSHTool struct {
	Destination string
	// Command by its name in the broker's file.
	Command    string
	Credential string
	Timeout    time.Duration
}

var commandForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,47}$`)

// ssh reads a command on a host. INV-10.
func (r *reader) ssh(s section, b *hcl.Block) Tool {
	h := &SSHTool{Timeout: defaultHTTPTimeout}
	t := Tool{Ref: "ssh:" + b.Labels[0], Alias: strings.ReplaceAll(b.Labels[0], ".", "_"), Placement: runtimev1.Placement_PLACEMENT_GATEWAY, SSH: h}
	for _, name := range []string{"method", "path", "body", "idempotency_header"} {
		if s.has(name) {
			r.refuse(s.rangeOf(name), "%s is for kind = \"http\": what a command runs stands in broker.hcl", name)
		}
	}
	r.gateway(s, b, &t)
	s.text("destination", &h.Destination)
	s.text("credential", &h.Credential)
	r.reach(s, h.Destination, h.Credential)
	if !s.has("credential") {
		r.refuse(s.at, "credential is missing: a host is signed in to with a certificate that is issued for each call")
	}
	s.text("command", &h.Command)
	if !commandForm.MatchString(h.Command) {
		r.refuse(s.rangeOf("command"), "command must be the name of a command block of the destination in broker.hcl")
	}
	s.duration("timeout", &h.Timeout, time.Second, maxHTTPTimeout)
	return t
}
