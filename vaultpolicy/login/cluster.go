package login

import (
	"context"

	"bivouac/edge/protocol"
)

// Other is the error for a server that is not the one at which this session began. To
// it the broker logs in nowhere, so nothing that another server says about a grant is
// ever believed, and nothing is written there.
type Other struct {
	Address string
	Was, Is string // cluster ids
}

func (o *Other) Error() string {
	return o.Address + " is another server than the one that holds the grants: cluster " + o.Is + " answers, and it was " + o.Was
}

// MendOther is what a person does about it.
const MendOther = "lead the address back to the server that it was; or, if the new one is meant, restart the broker: then its grants alone count"

// sameCluster refuses a server that is another one. The first that takes the broker's
// login is the one. It returns who answers.
func (s *Session) sameCluster(ctx context.Context) (string, error) {
	known := s.strangers.Load()
	is, err := s.client.Cluster(ctx)
	if err != nil {
		return "", err
	}
	was := s.cluster.Load()
	if was == nil || *was == is {
		// A stranger that came after the question was put is news that this answer does not
		// know of.
		s.strangers.CompareAndSwap(known, nil)
		return is, nil
	}
	if last := s.strangers.Swap(&is); last == nil || *last != is {
		s.log.ErrorContext(ctx, "another server answers where the grants were: nothing is believed or written there", "server", s.client.Address(), "was", *was, "is", is, "mend", MendOther)
	}
	return "", protocol.Errorf(protocol.CodeUnavailable, "%w; %s", &Other{s.client.Address(), *was, is}, MendOther)
}

// bind makes a server that has taken the broker's login the session's one: the same
// must have answered before and after it.
func (s *Session) bind(ctx context.Context, before string) error {
	after, err := s.sameCluster(ctx)
	if err != nil {
		return err
	}
	if after != before {
		return protocol.Errorf(protocol.CodeUnavailable, "%w; %s", &Other{s.client.Address(), before, after}, MendOther)
	}
	s.cluster.CompareAndSwap(nil, &after)
	return nil
}
