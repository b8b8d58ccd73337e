package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// table prints columns for people. What came from elsewhere (names, reasons) is
// stripped of control characters: a terminal obeys them.
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

// plain makes one line of harmless text.
func plain(s string) string { return clean(s, "\n\t") }

// harmless keeps the lines of a text and drops what a terminal would obey.
func harmless(s string) string { return clean(s, "") }

func clean(s, also string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case strings.ContainsRune(also, r):
			return ' '
		case r == '\n' || r == '\t':
			return r
		case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, s)
}

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
