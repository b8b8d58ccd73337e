package main

import (
	"io"
	"testing"

	"bivouac/edge/protocol"
)

func TestMistypedCommandIsAnArgumentError(t *testing.T) {
	for _, args := range [][]string{{"bogus"}, {"init", "extra"}, {"run", "extra"}} {
		c := command()
		c.SetArgs(args)
		c.SetOut(io.Discard)
		if err := c.ExecuteContext(t.Context()); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%v: %v", args, err)
		}
	}
	c := command()
	c.SetArgs([]string{"--help"})
	c.SetOut(io.Discard)
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Errorf("--help: %v", err)
	}
}
