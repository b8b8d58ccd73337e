// Package egress is the broker's way out: one HTTP transport a destination that
// resolves names after policy and refuses where nobody sent it.
//
// It guarantees that the address that was checked is the address that is
// dialled, that loopback, private, link-local and metadata addresses are
// refused unless the destination itself names or allows them, that no proxy of
// the environment is used and that a redirect is never followed. It knows
// nothing of credentials. Test it with go test alone.
package egress

import (
	"net/netip"
)

// Class of an address.
type Class string

const (
	Public    Class = "public"
	Loopback  Class = "loopback"
	Private   Class = "private"
	LinkLocal Class = "link-local" // the metadata services of clouds live here
	Reserved  Class = "reserved"
)

var (
	privatePrefixes = prefixes("100.64.0.0/10")
	// metadata services outside of the link-local range.
	metadataAddresses = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16")}
	reservedPrefixes  = prefixes("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16")
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Classify says what an address is, looking through the forms in which IPv6
// carries an IPv4 address.
func Classify(a netip.Addr) Class {
	a = a.Unmap().WithZone("")
	if inner, ok := embedded(a); ok {
		a = inner
	}
	for _, m := range metadataAddresses {
		if a == m {
			return LinkLocal
		}
	}
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
		return Reserved
	case a.IsLoopback():
		return Loopback
	case a.IsLinkLocalUnicast():
		return LinkLocal
	case a.IsPrivate() || in(a, privatePrefixes):
		return Private
	case in(a, reservedPrefixes):
		return Reserved
	}
	return Public
}

func in(a netip.Addr, ps []netip.Prefix) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	nat64l = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215, last 32 bits in common use
	six4   = netip.MustParsePrefix("2002::/16")      // RFC 3056
	compat = netip.MustParsePrefix("::/96")          // RFC 4291, retired
)

// embedded is the IPv4 address inside an IPv6 one.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	switch {
	case nat64.Contains(a), nat64l.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case six4.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case compat.Contains(a) && !a.IsLoopback() && !a.IsUnspecified():
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return a, false
}
