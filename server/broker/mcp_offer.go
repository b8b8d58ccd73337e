package broker

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/mcp"
)

// ByOffer is what Reach says of a tool that its MCP server does not offer as it was
// accepted.
const ByOffer Refusal = "enumeration"

// looksTimeout bounds what one question about many tools may look at.
const looksTimeout = 6 * time.Second

// lookers look at MCP servers for one question, each once.
type lookers struct {
	b    *Broker
	ends time.Time
	open map[string]looked
}

type looked struct {
	session *mcp.Session
	err     error
}

func (b *Broker) lookers() *lookers {
	return &lookers{b: b, ends: time.Now().Add(looksTimeout), open: map[string]looked{}}
}

// stillOffered holds a tool against what its server offers now. Where the operator
// bound no credential for looking and the tool needs one, it is left to the call,
// which looks anyway.
func (l *lookers) stillOffered(ctx context.Context, r *request) error {
	name, pin := r.destination(), r.tool.GetMcp()
	server := l.b.destinations[name].mcp
	if server == nil || server.Credential() == "" && r.tool.GetCredential() != "" {
		return nil
	}
	s, asked := l.open[name]
	if !asked {
		ctx, cancel := context.WithDeadlineCause(ctx, l.ends, protocol.Errorf(protocol.CodeDeadlineExceeded, "the MCP server of destination %s did not say in time what it offers", name))
		defer cancel()
		s.session, s.err = l.b.look(ctx, r.claims.Tenant, server)
		l.open[name] = s
	}
	err := s.err
	if err == nil {
		err = s.session.Check(mcp.Call{Tool: pin.GetTool(), Digest: pin.GetSchemaDigest()})
	}
	if err != nil {
		return &reachError{ByOffer, notCalled(err)}
	}
	return nil
}

func (l *lookers) close(ctx context.Context) {
	for _, s := range l.open {
		if s.session != nil {
			s.session.Close(ctx)
		}
	}
}
