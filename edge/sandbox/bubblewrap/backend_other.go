//go:build !linux

package bubblewrap

import (
	"context"
	"runtime"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// Backend on a system without bubblewrap offers nothing and says why.
type Backend struct{}

// New makes a backend whose Probe explains.
func New(Config) *Backend { return &Backend{} }

// Probe reports no boundary.
func (*Backend) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Problem: "bubblewrap sandboxes need Linux and this is " + runtime.GOOS +
		"; this machine offers fixed device actions only"}
}

// Group refuses.
func (b *Backend) Group(ctx context.Context, _ string, _ sandbox.Limits) (sandbox.Group, error) {
	return nil, protocol.Errorf(protocol.CodeIncompatible, "%s", b.Probe(ctx).Problem)
}

// Clear finds nothing.
func (*Backend) Clear(context.Context, string) error { return nil }

// Sweep finds nothing.
func (*Backend) Sweep(context.Context, []string) ([]string, error) { return nil, nil }

// Tidy has nothing to remove.
func (*Backend) Tidy(context.Context) error { return nil }
