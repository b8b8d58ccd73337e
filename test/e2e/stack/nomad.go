//go:build linux

package stack

import (
	"context"
	"os"
)

// Jobs run server and broker as another scheduler does: for their first start all is
// made on their machine, by the commands that everybody has.
type Jobs interface {
	// Broker is run on the folder broker of the stack.
	Broker(ctx context.Context, s *Stack) error
	// Server is run on the folder server, with the code in the file server-code.
	// bootstrap is what that command said.
	Server(ctx context.Context, s *Stack, bootstrap string) error
}

// UseNomad restarts the server with a nomad block in its file.
func (s *Stack) UseNomad(ctx context.Context, block string) error { return s.useFile(ctx, block) }

// useFile restarts the server with a file of its own.
func (s *Stack) useFile(ctx context.Context, block string) error {
	file := s.Path("server.hcl")
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		return err
	}
	if err := s.Server.End(); err != nil {
		return err
	}
	args := append([]string{"--config", file, "--data", s.Path("server"), "--public", s.public, "--runners", s.runners, "--broker", s.broker}, s.shared()...)
	s.Server = s.process("server", s.cfg.Control, "bivouac-server", args...)
	if err := s.Server.Start(); err != nil {
		return err
	}
	return s.Ready(ctx)
}

// RunnersAddress is where runners reach the server.
func (s *Stack) RunnersAddress() string { return s.runners }

// Addresses are what server and broker listen at: the API, machines, and the broker.
func (s *Stack) Addresses() (public, runners, broker string) { return s.public, s.runners, s.broker }

// Program is the path of a binary of the product.
func (s *Stack) Program(name string) string { return s.cfg.Bin + "/" + name }
