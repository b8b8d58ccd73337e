package ssh

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	wire "golang.org/x/crypto/ssh"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// hostAlgorithms in the order in which the host is asked for its key: those of what is
// pinned first. The others follow, so that a host that has none of them is told by the
// fingerprint of what it has.
func (e *Endpoint) hostAlgorithms() []string {
	all := wire.SupportedAlgorithms().HostKeys
	first := func(algorithm string) bool {
		base, certified := strings.CutSuffix(algorithm, "-cert-v01@openssh.com")
		if certified {
			return len(e.cfg.HostCAs) > 0
		}
		return slices.ContainsFunc(e.cfg.HostKeys, func(k wire.PublicKey) bool {
			return k.Type() == base || k.Type() == wire.KeyAlgoRSA && strings.HasPrefix(base, "rsa-sha2-")
		})
	}
	var pinned, others []string
	for _, a := range all {
		if first(a) {
			pinned = append(pinned, a)
		} else {
			others = append(others, a)
		}
	}
	return append(pinned, others...)
}

// checkHost holds what the host shows against what is pinned. Nothing is believed for
// being shown first.
func (e *Endpoint) checkHost(address string, remote net.Addr, key wire.PublicKey) error {
	if cert, certified := key.(*wire.Certificate); certified && len(e.cfg.HostCAs) > 0 {
		checker := wire.CertChecker{IsHostAuthority: func(by wire.PublicKey, _ string) bool { return among(e.cfg.HostCAs, by) }}
		err := checker.CheckHostKey(address, remote, key)
		if err == nil && len(cert.ValidPrincipals) == 0 {
			err = errors.New("it names no host, and would be good for every one")
		}
		if err == nil {
			return nil
		}
		return protocol.Errorf(protocol.CodePolicyDenied,
			"destination %s is not the host that broker.hcl knows: it shows a certificate of the key %s, signed by %s %s for %s (%s). Nothing was run. If that is its authority and its name, an operator puts the authority into host_ca of the ssh block, or mends the host's certificate",
			e.cfg.Name, fingerprint(cert.Key), cert.SignatureKey.Type(), wire.FingerprintSHA256(cert.SignatureKey), heard(fmt.Sprintf("%q", cert.ValidPrincipals)), heard(strings.TrimPrefix(err.Error(), "ssh: ")))
	}
	if cert, certified := key.(*wire.Certificate); certified {
		key = cert.Key // known by itself, or not at all
	}
	if among(e.cfg.HostKeys, key) {
		return nil
	}
	setting := "host_keys"
	if len(e.cfg.HostKeys) == 0 {
		setting = "host_keys, or certifies it by one of host_ca,"
	}
	return protocol.Errorf(protocol.CodePolicyDenied,
		"destination %s is not the host that broker.hcl knows: it shows the key %s. Nothing was run. If an operator finds the same on the host itself (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub), they put it into %s of the ssh block",
		e.cfg.Name, fingerprint(key), setting)
}

// maxHeard bounds what is repeated of a host's own words.
const maxHeard = 200

// heard is what a host says, where an error repeats it: one line that shows what is in
// it, and not much of it. Whoever answers at its address says what they like.
func heard(s string) string {
	short := s[:min(len(s), maxHeard)]
	if len(short) < len(s) {
		short = strings.ToValidUTF8(short, "") + "…"
	}
	return legible.Line(short)
}

func fingerprint(k wire.PublicKey) string { return k.Type() + " " + wire.FingerprintSHA256(k) }

func among(known []wire.PublicKey, key wire.PublicKey) bool {
	return slices.ContainsFunc(known, func(k wire.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) })
}
