package rig

import (
	"context"
	"crypto/tls"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/capability"
)

// Work is under what a call is made. An empty Session is a new one; without a Grant it
// stands on none.
type Work struct {
	Agent   string
	Session protocol.SessionID
	Grant   protocol.GrantID
}

// Caller calls the broker with one certificate.
type Caller struct {
	rig    *Rig
	cert   *tls.Certificate
	client *link.Client
	broker brokerv1connect.BrokerServiceClient
}

// Server is a caller with the server's certificate.
func (r *Rig) Server() (*Caller, error) { return r.caller(r.server) }

// Runner is a caller with a certificate of a runner of its own.
func (r *Rig) Runner() (*Caller, error) {
	cert, err := r.certify(identity.RoleRunner)
	if err != nil {
		return nil, err
	}
	return r.caller(cert)
}

func (r *Rig) caller(cert *tls.Certificate) (*Caller, error) {
	c, err := link.NewClient(link.Config{Address: r.address, Trust: link.Trust{Role: identity.RoleBroker, Root: r.keys.Root()},
		Certificate: func() (*tls.Certificate, error) { return cert, nil }})
	if err != nil {
		return nil, err
	}
	return &Caller{r, cert, c, brokerv1connect.NewBrokerServiceClient(c, c.URL())}, nil
}

// Close the caller's connection, as when its process ends.
func (c *Caller) Close() error { return c.client.Close() }

// Call makes one model call to its end; onDelta gets each piece.
func (c *Caller) Call(ctx context.Context, w Work, prompt string, onDelta func(string)) (text string, err error) {
	token, err := c.capability(w)
	if err != nil {
		return "", err
	}
	s, err := c.broker.CallModel(ctx, &brokerv1.CallModelRequest{Capability: token, CallId: "cal_1", Request: request(prompt)})
	if err != nil {
		return "", protocol.FromConnect(err)
	}
	defer s.Close()
	for s.Receive() {
		if d := s.Msg().GetEvent().GetTextDelta(); d != "" {
			text += d
			if onDelta != nil {
				onDelta(d)
			}
		}
	}
	return text, protocol.FromConnect(s.Err())
}

func request(prompt string) *runtimev1.ModelRequest {
	return &runtimev1.ModelRequest{Model: "main", MaxOutputTokens: 100, Messages: []*runtimev1.Message{
		{Role: runtimev1.Role_ROLE_USER, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: prompt}}}},
	}}
}

func (c *Caller) capability(w Work) (string, error) {
	now := time.Now()
	claims := capability.Claims{
		ID: newID[protocol.CapabilityKind](), Audience: "default", Tenant: c.rig.tenant, TenantName: "local", Principal: newID[protocol.PrincipalKind](),
		Agent: w.Agent, Grant: w.Grant, Instance: newID[protocol.InstanceKind](), Generation: 1, Session: w.Session, Turn: newID[protocol.TurnKind](), Fence: 1,
		Presenter: identity.Thumbprint(c.cert.Leaf.RawSubjectPublicKeyInfo), Models: []string{"main"}, Slice: newID[protocol.SliceKind](),
		SliceBoot: c.rig.broker.BootNonce(), SliceCeiling: 1, PolicyDigest: "p", DataBoundary: "personal",
		IssuedAt: now, ExpiresAt: now.Add(time.Minute), Deadline: now.Add(time.Hour),
	}
	if claims.Session == "" {
		claims.Session = newID[protocol.SessionKind]()
	}
	return c.rig.signing.Sign(claims)
}
