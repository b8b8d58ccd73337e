package broker

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/gateway"
)

// pagedConfig is a destination with a pages block, and lines beside it.
func pagedConfig(pages, beside string) string {
	return "destination \"lists\" {\n  url = \"https://lists.example\"\n" + beside + "\n  pages {\n" + pages + "\n  }\n}\n"
}

func TestPagesInTheFile(t *testing.T) {
	c, err := ParseConfig([]byte(pagedConfig("by = \"cursor\"\nitems = \"data.items\"\ncursor = \"meta.next\"", "retries = 0")), "broker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	d := c.Destinations[0]
	if p := d.Pages.paging(); p.By != gateway.ByCursor || len(p.Items) != 2 || p.Parameter != "cursor" || p.MaxPages != 10 || p.MaxBytes != 4<<20 || p.Timeout.Seconds() != 20 || d.retries() != 0 {
		t.Errorf("%+v", p)
	}
	if c, err := ParseConfig([]byte(pagedConfig("by = \"number\"\nfirst = 0", "")), "broker.hcl"); err != nil || c.Destinations[0].retries() != 2 || *c.Destinations[0].Pages.First != 0 {
		t.Errorf("%v", err)
	}
	for text, want := range map[string]string{
		pagedConfig("", ""):                                     "by",
		pagedConfig("by = \"offset\"", ""):                      "use one of cursor, link, number",
		pagedConfig("by = \"cursor\"", ""):                      "needs cursor",
		pagedConfig("by = \"cursor\"\ncursor = \"n\"", ""):      "needs items",
		pagedConfig("by = \"link\"\ncursor = \"next\"", ""):     "cursor is for",
		pagedConfig("by = \"link\"\nitems = \"a..b\"", ""):      "is no field",
		pagedConfig("by = \"number\"\nparameter = \"a&b\"", ""): "no name of a query's parameter",
		pagedConfig("by = \"link\"\nmax_pages = 5000", ""):      "max_pages must be 1 to 1000",
		pagedConfig("by = \"link\"\nmax_kib = -1", ""):          "max_kib 1 to",
		pagedConfig("by = \"number\"\nfirst = 7", ""):           "first 0 or 1",
		pagedConfig("by = \"link\"\ntimeout = \"1h\"", ""):      "a duration from",
		pagedConfig("by = \"link\"", "retries = 50"):            "retries 50 must be 0 to 5",
		pagedConfig("by = \"link\"", "methods = [\"POST\"]"):    "only GET has pages",
		pagedConfig("by = \"link\"", "mcp {\n}"):                "a call of an MCP server is sent once",
	} {
		_, err := ParseConfig([]byte(text), "broker.hcl")
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
