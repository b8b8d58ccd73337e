package broker

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"bivouac/server/broker/gateway"
)

// Pages says how a destination divides what it lists. Tools that read (effect R0) with
// GET get the items of all pages in one answer; pages that are not of the destination
// itself are not followed, and each is held against the paths like any request.
type Pages struct {
	// By is "link" (a Link header with rel="next"), "cursor" (a field of the answer goes
	// into a parameter of the query) or "number" (a parameter counts).
	By string `hcl:"by"`
	// Items is where the list stands in an answer, with dots: "data.items". Empty: the
	// answer is the list, which "cursor" cannot have: its cursor stands beside the list.
	Items string `hcl:"items,optional"`
	// Cursor is the field with the next page's cursor, with dots. For "cursor".
	Cursor string `hcl:"cursor,optional"`
	// Parameter of the query. A tool whose path has it by itself gets one page. Default
	// "cursor" for "cursor", "page" otherwise.
	Parameter string `hcl:"parameter,optional"`
	// First is the number of the first page, for "number". Default 1.
	First *int `hcl:"first,optional"`
	// MaxPages of one call. Default 10.
	MaxPages int `hcl:"max_pages,optional"`
	// MaxKiB that all pages of a call may have. An answer has at most 1024 all the same.
	// Default 4096.
	MaxKiB int `hcl:"max_kib,optional"`
	// Timeout of all pages after the first; the tool's own time holds too. Default "20s".
	Timeout string `hcl:"timeout,optional"`
}

func (p *Pages) withDefaults() *Pages {
	if p == nil {
		return nil
	}
	out, one := *p, 1
	parameter := "page"
	if out.By == gateway.ByCursor {
		parameter = "cursor"
	}
	out.Parameter = cmp.Or(out.Parameter, parameter)
	if out.First == nil {
		out.First = &one
	}
	out.MaxPages, out.MaxKiB, out.Timeout = cmp.Or(out.MaxPages, 10), cmp.Or(out.MaxKiB, 4096), cmp.Or(out.Timeout, "20s")
	return &out
}

// timeout of a checked configuration.
func (p *Pages) timeout() time.Duration {
	d, err := time.ParseDuration(p.Timeout)
	if err != nil {
		return 0
	}
	return d
}

func (p *Pages) paging() *gateway.Paging {
	if p == nil {
		return nil
	}
	return &gateway.Paging{
		By: p.By, Items: dotted(p.Items), Cursor: dotted(p.Cursor), Parameter: p.Parameter, First: *p.First,
		MaxPages: p.MaxPages, MaxBytes: p.MaxKiB << 10, Timeout: p.timeout(),
	}
}

func dotted(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}

func (d Destination) retries() int {
	if d.Retries == nil {
		return gateway.DefaultRetries
	}
	return *d.Retries
}

var (
	fieldForm     = regexp.MustCompile(`^[^.{}\s]{1,64}(\.[^.{}\s]{1,64}){0,7}$`)
	parameterForm = regexp.MustCompile(`^[A-Za-z0-9_.\[\]-]{1,64}$`)
)

func (k *check) pages(d Destination) {
	if n := d.retries(); n < 0 || n > gateway.MaxRetries {
		k.bad(d.Range, "retries %d must be 0 to %d", n, gateway.MaxRetries)
	}
	if d.MCP != nil && (d.Retries != nil || d.Pages != nil) {
		k.bad(d.Range, "mcp: retries and pages are for http tools: a call of an MCP server is sent once")
	}
	p := d.Pages
	if p == nil {
		return
	}
	if !slices.Contains(gateway.Ways, p.By) {
		k.bad(d.Range, "pages: by %q: use one of %s", p.By, strings.Join(gateway.Ways, ", "))
	}
	for name, path := range map[string]string{"items": p.Items, "cursor": p.Cursor} {
		if path != "" && !fieldForm.MatchString(path) {
			k.bad(d.Range, "pages: %s %q is no field: names with dots between them, from the outside in", name, path)
		}
	}
	switch {
	case p.By == gateway.ByCursor && p.Cursor == "":
		k.bad(d.Range, "pages: by \"cursor\" needs cursor: the field of an answer that holds it")
	case p.By == gateway.ByCursor && p.Items == "":
		k.bad(d.Range, "pages: by \"cursor\" needs items: the field of an answer that holds the list, such as \"data\"; a list that is the whole answer has no place for a cursor")
	case p.By != gateway.ByCursor && p.Cursor != "":
		k.bad(d.Range, "pages: cursor is for by = \"cursor\"")
	}
	if !parameterForm.MatchString(p.Parameter) {
		k.bad(d.Range, "pages: parameter %q is no name of a query's parameter", p.Parameter)
	}
	if len(d.Methods) > 0 && !slices.Contains(d.Methods, "GET") {
		k.bad(d.Range, "pages: only GET has pages, and methods does not have it")
	}
	if p.MaxPages < 1 || p.MaxPages > 1000 || p.MaxKiB < 1 || p.MaxKiB > 64<<10 || *p.First < 0 || *p.First > 1 {
		k.bad(d.Range, "pages: max_pages must be 1 to 1000, max_kib 1 to %d, and first 0 or 1", 64<<10)
	}
	if t := p.timeout(); t < time.Second || t > gateway.MaxTimeout {
		k.bad(d.Range, "pages: timeout %q: a duration from \"1s\" to %q", p.Timeout, gateway.MaxTimeout)
	}
}
