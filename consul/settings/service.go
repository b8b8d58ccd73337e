package settings

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"bivouac/consul"
)

// Service makes the process a service in Consul, with a health check that it feeds itself.
// In broker.hcl it also says that the intentions about this service count: of Peer, or of
// whoever the mesh block proves.
type Service struct {
	// Name in Consul. Default "bivouac-broker" and "bivouac-server".
	Name string `hcl:"name,optional"`
	// Peer is the name of the other process. Default the other one's default.
	Peer string `hcl:"peer,optional"`
	// Address under which others reach the process, host:port. Default: the address that
	// it listens at, or advertises.
	Address string `hcl:"address,optional"`
	// Tags and Meta as they stand in the catalog. The meta keys "version",
	// "process", "instance" and "runners" are Bivouac's own.
	Tags []string          `hcl:"tags,optional"`
	Meta map[string]string `hcl:"meta,optional"`
	// TTLText is after how much silence the check is critical. Default "15s".
	TTLText string `hcl:"ttl,optional"`
	// DeregisterText is after how long in critical the service leaves the catalog by
	// itself. Default "24h".
	DeregisterText string `hcl:"deregister_after,optional"`
}

// Mesh gives the process an identity of Consul's mesh: a leaf of Consul's authority for
// the service, proven on every connection between server and broker, beside the
// certificate under the deployment's own root.
type Mesh struct {
	// Datacenters whose services are believed. Default: the one that this process' own
	// leaf names.
	Datacenters []string `hcl:"datacenters,optional"`
}

// DefaultName of a process' service.
func DefaultName(of Of) string { return "bivouac-" + string(of) }

// other process of a pair.
var other = map[Of]Of{Broker: Server, Server: Broker}

// Other process of the pair.
func Other(of Of) Of { return other[of] }

func (s *Service) withDefaults(of Of) *Service {
	if s == nil {
		return nil
	}
	out := *s
	out.Name, out.Peer = cmp.Or(s.Name, DefaultName(of)), cmp.Or(s.Peer, DefaultName(other[of]))
	out.TTLText, out.DeregisterText = cmp.Or(s.TTLText, "15s"), cmp.Or(s.DeregisterText, "24h")
	return &out
}

// TTL after which a silent process is critical.
func (s *Service) TTL() time.Duration { return duration(s.TTLText) }

// DeregisterAfter so long in critical.
func (s *Service) DeregisterAfter() time.Duration { return duration(s.DeregisterText) }

func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text) // checked by check.service
	return d
}

// Bounds of a check. Consul itself looks for what is to leave every half minute, and takes
// no less than a minute.
const (
	leastTTL, mostTTL               = 3 * time.Second, 10 * time.Minute
	leastDeregister, mostDeregister = time.Minute, 30 * 24 * time.Hour
)

// OwnMeta are the keys of a service's meta that Bivouac writes.
var OwnMeta = []string{"version", "process", "instance", "runners"}

// Consul's own bounds of a service's meta.
const (
	mostMeta     = 60 // beside OwnMeta
	mostMetaKey  = 128
	mostMetaText = 512
)

func (k *check) service(c *Config) {
	s := c.Service
	if s == nil {
		return
	}
	for field, name := range map[string]string{"name": s.Name, "peer": s.Peer} {
		if !validService(name) {
			k.bad("service.%s %q: a service's name has letters, digits and hyphens, at most 63, and begins and ends with a letter or a digit", field, name)
		}
	}
	if s.Name == s.Peer {
		k.bad("service.name and service.peer are both %q: server and broker are two services, or an intention between them could not say which may reach which", s.Name)
	}
	if s.Address != "" {
		if _, _, err := HostPort(s.Address); err != nil {
			k.bad("service.address %q: %w", s.Address, err)
		}
	}
	for _, tag := range s.Tags {
		if strings.TrimSpace(tag) == "" {
			k.bad("service.tags: an empty tag names nothing")
		}
	}
	k.meta(s.Meta)
	k.within("service.ttl", s.TTLText, leastTTL, mostTTL)
	k.within("service.deregister_after", s.DeregisterText, leastDeregister, mostDeregister)
}

func (k *check) meta(meta map[string]string) {
	if len(meta) > mostMeta {
		k.bad("service.meta has %d keys: Consul takes %d beside Bivouac's own", len(meta), mostMeta)
	}
	for key, text := range meta {
		switch {
		case slices.Contains(OwnMeta, key):
			k.bad("service.meta: %q is Bivouac's own key: call yours otherwise", key)
		case key == "" || len(key) > mostMetaKey || strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "":
			k.bad("service.meta: the key %q: letters, digits, hyphens and underscores, at most %d", key, mostMetaKey)
		case len(text) > mostMetaText:
			k.bad("service.meta: the text of %q is longer than %d", key, mostMetaText)
		}
	}
}

func (k *check) within(field, text string, least, most time.Duration) {
	if d, err := time.ParseDuration(text); err != nil || d < least || d > most {
		k.bad("%s %q: a duration from %q to %q", field, text, least, most)
	}
}

func (k *check) mesh(c *Config) {
	if c.Mesh == nil {
		return
	}
	if c.Service == nil {
		k.bad("mesh: the identity is that of a service, and there is no service block: add service {} beside mesh {}")
	}
	for _, name := range c.Mesh.Datacenters {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			k.bad("mesh.datacenters: %q is no name of a datacenter", name)
		}
	}
}

// validService is what both the catalog and Consul's authority take as a name.
func validService(name string) bool {
	plain := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
	if consul.CheckName(name) != nil || name == consul.Wildcard || len(name) > 63 || strings.ContainsAny(name, "._") {
		return false
	}
	return plain(name[0]) && plain(name[len(name)-1])
}

// HostPort of an address that others dial: a name or an IP of this machine, and a port.
func HostPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
		return "", 0, &net.AddrError{Err: "no port that can be dialled", Addr: address}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "", 0, &net.AddrError{Err: "it names no machine: say in service.address how others reach this process, host:port", Addr: address}
	}
	return host, port, nil
}
