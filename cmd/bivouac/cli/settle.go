package cli

import (
	"fmt"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// settling is what the setup command of an engine found: the same loop for all of them.
type settling struct {
	engine, address string
	// differ is how many items do; shown is how a person reads them, "nothing differs" too,
	// and items how a program does.
	differ int
	shown  fmt.Stringer
	items  any
	// apply makes them, and tells of each.
	apply func(told func(title string, missing bool)) error
	// next says what is left for a person after that; nil: nothing.
	next func()
}

// settle shows what differs, or makes it. A look that found something ends as a dry run
// does.
func (a *app) settle(s settling, apply bool) error {
	if apply {
		return a.makeAll(s)
	}
	if a.json {
		if err := a.printJSON(map[string]any{"server": s.address, "applied": false, "items": s.items}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(legible.Writer{W: a.out}, "%s\n%s", s.address, s.shown)
	}
	if s.differ == 0 {
		return nil
	}
	if !a.json {
		fmt.Fprintf(a.err, "%d item(s) differ; bivouac %s setup --apply makes them\n", s.differ, s.engine)
	}
	return exitError{protocol.ExitDiffers}
}

func (a *app) makeAll(s settling) error {
	if !a.json {
		fmt.Fprintf(legible.Writer{W: a.out}, "%s\n", s.address)
	}
	err := s.apply(func(title string, missing bool) {
		if !a.json {
			fmt.Fprintf(legible.Writer{W: a.out}, "%s %s\n", map[bool]string{true: "made", false: "changed"}[missing], title)
		}
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(map[string]any{"server": s.address, "applied": true, "items": s.items})
	case s.differ == 0:
		fmt.Fprintln(a.out, "nothing differs")
	}
	if s.next != nil {
		s.next()
	}
	return nil
}
