package workspace

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"
)

// commit streams the changes to `git fast-import`, which applies no filter and
// runs no hook.
func (r *Repo) commit(ctx context.Context, root *os.Root, ref, from string, changes []change) error {
	pr, pw := io.Pipe()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := writeImport(pw, root, ref, from, changes)
		pw.CloseWithError(err)
		return err
	})
	g.Go(func() error {
		_, err := r.bare(gctx, pr, nil, "fast-import", "--quiet", "--force", "--done")
		pr.CloseWithError(io.ErrClosedPipe)
		return err
	})
	return g.Wait()
}

func writeImport(w io.Writer, root *os.Root, ref, from string, changes []change) error {
	b := bufio.NewWriterSize(w, 64<<10)
	fmt.Fprintf(b, "commit %s\ncommitter bivouac <bivouac> 0 +0000\ndata 0\n", ref)
	if from != "" {
		fmt.Fprintf(b, "from %s\n", from)
	}
	for _, c := range changes {
		if c.deleted {
			fmt.Fprintf(b, "D %s\n", quoted(c.name))
		}
	}
	for _, c := range changes {
		if c.deleted {
			continue
		}
		fmt.Fprintf(b, "M %s inline %s\ndata %d\n", c.mode(), quoted(c.name), c.size)
		if err := c.copyContent(root, b); err != nil {
			return err
		}
		b.WriteByte('\n')
	}
	b.WriteString("done\n")
	return b.Flush()
}

// quoted is a name as fast-import reads it.
func quoted(name string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name) + `"`
}
