//go:build linux

package stack

import (
	"context"
	"os"
)

// UseNomad restarts the server with a nomad block in its file.
func (s *Stack) UseNomad(ctx context.Context, block string) error {
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

// Program is the path of a binary of the product.
func (s *Stack) Program(name string) string { return s.cfg.Bin + "/" + name }
