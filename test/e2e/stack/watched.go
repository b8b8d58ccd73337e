//go:build linux

package stack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"bivouac/test/process"
)

// Watched is how a deployment is looked at by whoever watches it: each process shows
// a page of numbers, and the server sends its traces to a collector.
type Watched struct {
	// Collector of traces; empty: none.
	Collector string
	// Numbers: each process has its page.
	Numbers bool
}

// flags of a process that is watched: its page, and the collector where it sends traces.
func (s *Stack) watchFlags(name string, traces bool) (flags []string, err error) {
	if s.cfg.Watched.Numbers {
		port, err := process.FreePort()
		if err != nil {
			return nil, err
		}
		at := net.JoinHostPort(loopback, fmt.Sprint(port))
		if s.pages == nil {
			s.pages = map[string]string{}
		}
		s.pages[name] = "http://" + at + "/metrics"
		flags = append(flags, "--metrics", at)
	}
	if traces && s.cfg.Watched.Collector != "" {
		flags = append(flags, "--trace-endpoint", s.cfg.Watched.Collector)
	}
	return flags, nil
}

// Numbers are the pages of all processes of the stack, by the process's name.
func (s *Stack) Numbers(ctx context.Context) (map[string][]byte, error) {
	web := &http.Client{Timeout: 5 * time.Second}
	defer web.CloseIdleConnections()
	out := map[string][]byte{}
	names := []string{"broker", "server"}
	for _, e := range s.Edges {
		names = append(names, "edge-"+e.Name)
	}
	for _, name := range names {
		url := s.pages[name]
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		res, err := web.Do(req)
		if err != nil {
			return nil, err
		}
		out[name], err = io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
