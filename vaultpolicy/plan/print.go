package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String shows what would be made.
func (p Plan) String() string {
	var d Diff
	for _, i := range p.Items {
		d = append(d, Difference{Item: i, Missing: true})
	}
	return d.String()
}

// String shows a difference as a person reads it: + what is made, ~ what is changed,
// ! what stands in the way.
func (d Diff) String() string {
	if len(d) == 0 {
		return "nothing differs\n"
	}
	var b strings.Builder
	for _, x := range d {
		x.print(&b)
	}
	return b.String()
}

// Missing names what is not there or not as it must be, with what does not work.
func (d Diff) Missing() (out []string) {
	for _, x := range d {
		state := "is missing"
		if !x.Missing {
			state = "differs"
		}
		out = append(out, fmt.Sprintf("%s %s: without it, %s", x.Title(), state, x.For))
	}
	return out
}

func (x Difference) print(b *strings.Builder) {
	mark := "~"
	switch {
	case x.Missing:
		mark = "+"
	case x.Fixed:
		mark = "!"
	}
	fmt.Fprintf(b, "%s %s (%s)\n", mark, x.Title(), x.Path)
	changes := x.Changes
	if x.Missing {
		for _, f := range slices.Sorted(maps.Keys(x.Want)) {
			changes = append(changes, Change{Field: f, Want: x.Want[f]})
		}
	}
	for _, c := range changes {
		want, long := c.Want.(string)
		have, _ := c.Have.(string)
		switch {
		case long && strings.Contains(want, "\n"):
			for _, line := range lines(have, want) {
				fmt.Fprintf(b, "    %s\n", line)
			}
		case x.Missing:
			fmt.Fprintf(b, "    %s = %s\n", c.Field, show(c.Want))
		default:
			fmt.Fprintf(b, "    %s = %s -> %s\n", c.Field, show(c.Have), show(c.Want))
		}
	}
}

// lines is the difference of two texts: the longest common part stays, what is gone
// has a minus and what is new a plus. Texts are policies: short.
func lines(have, want string) (out []string) {
	a, b := split(have), split(want)
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			if have != "" {
				out = append(out, "  "+a[i])
			}
			i, j = i+1, j+1
		case j < len(b) && (i == len(a) || common[i][j+1] >= common[i+1][j]):
			out = append(out, "+ "+b[j])
			j++
		default:
			out = append(out, "- "+a[i])
			i++
		}
	}
	return out
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
