//go:build linux

package stack

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac/server/api/client"
)

// shared are the flags of every server of one database.
func (s *Stack) shared() []string {
	if s.cfg.Database == "" {
		return nil
	}
	return []string{"--database", s.cfg.Database, "--blobs", s.Path("blobs")}
}

// startSecond brings another server up on the same database: its own directory,
// key and enrolment, and nothing else of its own.
func (s *Stack) startSecond(ctx context.Context) error {
	if s.cfg.Database == "" {
		return nil
	}
	code := s.Path("second-code")
	if _, err := s.Run(ctx, "bivouac-broker", "server-code", "--data", s.Path("broker"), "--out", code); err != nil {
		return err
	}
	s.Second = s.process("second", s.cfg.Control, "bivouac-server", append([]string{"--data", s.Path("second"),
		"--public", s.second.public, "--runners", s.second.runners, "--advertise-runners", s.balancer.address(),
		"--broker", s.broker, "--broker-code-file", code}, s.shared()...)...)
	if err := s.Second.Start(); err != nil {
		return err
	}
	if err := s.SecondReady(ctx); err != nil {
		return err
	}
	token, err := os.ReadFile(s.Path("secrets", "token"))
	if err != nil {
		return err
	}
	s.SecondAPI, err = client.New(client.Config{URL: "http://" + s.second.public, Token: strings.TrimSpace(string(token)),
		HTTP: &http.Client{Transport: s.transport()}})
	return err
}

// SecondReady waits until the other server says that it can take a turn. Its broker
// follows the feed of one server: of this one it is as fresh.
func (s *Stack) SecondReady(ctx context.Context) error {
	web := &http.Client{Transport: s.transport(), Timeout: 5 * time.Second}
	defer web.CloseIdleConnections()
	return s.ready(ctx, web, s.Second, s.second.public)
}

// balancer leads each TCP connection to a server that lives, as what people put in
// front of several.
type balancer struct {
	listener net.Listener
	targets  []string
	work     sync.WaitGroup

	mu   sync.Mutex // guards below
	next int
	open map[net.Conn]bool
	over bool
}

func (s *Stack) startBalancer(context.Context) error {
	if s.cfg.Database == "" {
		return nil
	}
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return err
	}
	s.balancer = &balancer{listener: l, targets: []string{s.runners, s.second.runners}, open: map[net.Conn]bool{}}
	s.balancer.work.Go(s.balancer.serve)
	return nil
}

func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) serve() {
	for {
		in, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.work.Go(func() { b.carry(in) })
	}
}

// carry joins a connection to the first server that takes it, another each time.
func (b *balancer) carry(in net.Conn) {
	defer b.drop(in)
	b.mu.Lock()
	b.next++
	targets := slices.Concat(b.targets[b.next%len(b.targets):], b.targets[:b.next%len(b.targets)])
	b.mu.Unlock()
	for _, target := range targets {
		out, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil {
			continue
		}
		defer b.drop(out)
		if !b.keep(in) || !b.keep(out) {
			return
		}
		var g sync.WaitGroup
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			g.Go(func() {
				io.Copy(way[0], way[1])
				way[0].Close()
				way[1].Close()
			})
		}
		g.Wait()
		return
	}
}

func (b *balancer) keep(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[c] = true
	return !b.over
}

func (b *balancer) drop(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, c)
	c.Close()
}

func (b *balancer) close() {
	b.listener.Close()
	b.mu.Lock()
	b.over = true
	for c := range b.open {
		c.Close()
	}
	b.mu.Unlock()
	b.work.Wait()
}
