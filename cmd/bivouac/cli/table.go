package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"bivouac/edge/legible"
)

// table prints columns for people. In what came from elsewhere (names, reasons)
// what a terminal obeys, or nobody sees, is escaped.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	t.row(head...)
	return t
}

func (t table) row(cells ...string) {
	for i, c := range cells {
		if cells[i] = plain(c); cells[i] == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t table) flush() { t.w.Flush() } // the terminal is gone then

// plain makes one line in which every rune is seen.
func plain(s string) string { return legible.Line(s) }

// harmless keeps the lines of a text and escapes what a terminal would obey, or a
// person not see.
func harmless(s string) string { return legible.Text(s) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// ago says how long something is past, as people do.
func ago(t *timestamppb.Timestamp) string {
	if t == nil || t.AsTime().IsZero() {
		return "never"
	}
	d := time.Since(t.AsTime()).Round(time.Second)
	switch {
	case d < time.Second:
		return "now"
	case d < 2*time.Minute:
		return d.String() + " ago"
	case d < 48*time.Hour:
		return d.Round(time.Minute).String() + " ago"
	}
	return t.AsTime().Format("2006-01-02")
}

func clip(s string, n int) string {
	s = plain(s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
