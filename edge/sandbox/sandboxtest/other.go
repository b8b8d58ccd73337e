//go:build !linux

package sandboxtest

import "testing"

// The confining backends are Linux's.
func (c Config) limits(t *testing.T)    { t.Skip("needs Linux") }
func (c Config) workspace(t *testing.T) { t.Skip("needs Linux") }
func (c Config) tidy(t *testing.T)      { t.Skip("needs Linux") }
func (c Config) attacks(t *testing.T)   { t.Skip("needs Linux") }
