package intentions

import (
	"fmt"
	"strings"

	"bivouac/edge/protocol"
)

// late are the destinations of which nothing is known that is fresh enough, each with
// what its newest question ended with.
func (s *Server) late() (late []string) {
	for _, w := range s.all() {
		if k := w.known.Load(); k == nil || k.set == nil || s.p.Elapsed()-k.asked > s.p.Fresh {
			late = append(late, k.lacks(w.name))
		}
	}
	return late
}

// Ready is an error while Consul has not said for longer than Fresh who may reach
// something.
func (s *Server) Ready() error {
	late := s.late()
	if len(late) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeUnavailable, "%s", fmt.Sprintf("Consul has not said for more than %s who may reach %d destination(s): %s", s.p.Fresh, len(late), strings.Join(late, "; ")))
}
