package assembly

import (
	"errors"
	"os"
	"slices"

	"bivouac/consul/intentions"
	"bivouac/edge/finding"
	"bivouac/server/broker"
	"bivouac/vaultpolicy"
)

// Validate reads a broker.hcl as a broker does that starts with it, its blocks vault and
// consul too, and says all that is refused. It asks nobody, and opens no keyring.
func Validate(file string) *finding.Report {
	r := finding.From("broker")
	cfg, absent, err := broker.CheckFile(file)
	refused(r, "configuration", file, err)
	if _, gone := os.Stat(file); gone != nil {
		return r
	}
	if _, err := vaultpolicy.ReadFile(file, os.Getenv); !errors.Is(err, vaultpolicy.ErrNoVault) {
		refused(r, "vault", file, err)
	}
	if _, err := intentions.ReadFile(file, os.Getenv); !errors.Is(err, intentions.ErrNoConsul) {
		refused(r, "consul", file, err)
	}
	for _, ca := range absent {
		r.Warn("configuration", "ca_file: "+ca+" is not on this machine", noStart+" where it is not on the broker's own", "bivouac-broker doctor  (on the broker's machine)")
	}
	if r.Worst() != finding.Problem {
		r.Fine("configuration", "%s: %d model route(s), %d destination(s), by the rules of a broker that starts", file, len(cfg.Models), len(cfg.Destinations))
	}
	return r
}

const noStart = "the broker does not start with it"

// refused notes what is said of a file; who reads a part of it may say the same again.
func refused(r *finding.Report, check, file string, err error) {
	if err == nil || slices.ContainsFunc(r.All, func(f finding.Finding) bool { return f.What == err.Error() }) {
		return
	}
	r.Err(check, err, noStart, "edit "+file)
}
