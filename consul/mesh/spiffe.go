package mesh

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// id of a service in a mesh, as its one SPIFFE ID has it.
type id struct {
	trustDomain, partition, namespace, datacenter, service string
}

func (i id) String() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/dc/%s/svc/%s", i.trustDomain, i.namespace, i.datacenter, i.service)
}

// defaultTenancy is the one namespace and partition of Consul's Community Edition.
const defaultTenancy = "default"

// idOf a leaf: it has exactly one URI, and nothing else may name it.
func idOf(leaf *x509.Certificate) (id, error) {
	if len(leaf.URIs) != 1 {
		return id{}, fmt.Errorf("it names %d URIs, and a service of the mesh has one", len(leaf.URIs))
	}
	return parseID(leaf.URIs[0])
}

// parseID reads spiffe://TRUST-DOMAIN[/ap/PARTITION]/ns/NAMESPACE/dc/DATACENTER/svc/SERVICE.
func parseID(u *url.URL) (id, error) {
	bad := func() (id, error) {
		return id{}, fmt.Errorf("%q is no SPIFFE ID of a service", u)
	}
	if u.Scheme != "spiffe" || u.User != nil || u.Port() != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Host == "" || u.Opaque != "" || u.RawPath != "" {
		return bad()
	}
	out := id{trustDomain: strings.ToLower(u.Host), partition: defaultTenancy}
	parts := strings.Split(u.Path, "/")[1:]
	if len(parts) == 8 && parts[0] == "ap" {
		out.partition, parts = parts[1], parts[2:]
	}
	if len(parts) != 6 || parts[0] != "ns" || parts[2] != "dc" || parts[4] != "svc" {
		return bad()
	}
	out.namespace, out.datacenter, out.service = parts[1], parts[3], parts[5]
	for _, part := range []string{out.partition, out.namespace, out.datacenter, out.service} {
		if part == "" {
			return bad()
		}
	}
	return out, nil
}
