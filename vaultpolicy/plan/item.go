package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bivouac/vaultpolicy/client"
)

// Item is one thing that the server must have.
type Item struct {
	// Kind and Name are for people: "policy", "bivouac-grant".
	Kind, Name string
	// For says what does not work without it, as in "without it, ….".
	For string
	// Path where it is written, and read where ReadPath is empty.
	Path string
	// ReadPath answers with many things by name; Key is this one's.
	ReadPath, Key string
	// Want is what it must say: text, bool, int, time.Duration, []string or a map of
	// those. Fields that are not named are somebody else's.
	Want map[string]any
	// Fixed things cannot be changed once they are there.
	Fixed bool
	// Unless is what the server says, as an error, where the thing is not there yet.
	Unless string
	// Creates is written with Want when the thing is made, and never compared.
	Creates map[string]any
}

// Title of an item.
func (i Item) Title() string { return i.Kind + " " + i.Name }

// Change is one field that differs.
type Change struct {
	Field      string
	Have, Want any
}

// changes compares what is there with what is wanted, by the fields that are wanted.
func (i Item) changes(have map[string]any) (out []Change) {
	for _, field := range slices.Sorted(maps.Keys(i.Want)) {
		if !same(have[field], i.Want[field]) {
			out = append(out, Change{field, have[field], i.Want[field]})
		}
	}
	return out
}

// same compares a value of an answer with a wanted one, in the forms in which these
// servers give back what they were given.
func same(have, want any) bool {
	switch w := want.(type) {
	case string:
		return client.Text(have) == w
	case bool:
		return client.Flag(have) == w
	case int:
		return have != nil && client.Number(have) == int64(w)
	case time.Duration:
		if text := client.Text(have); text != "" {
			d, err := time.ParseDuration(text)
			return err == nil && d == w
		}
		return have != nil && client.Seconds(have) == w
	case []string:
		h := client.Texts(have)
		if text := client.Text(have); text != "" {
			h = strings.Split(text, ",")
		}
		return slices.Equal(slices.Sorted(slices.Values(h)), slices.Sorted(slices.Values(w)))
	case map[string]any:
		h := client.Map(have)
		if len(w) == 0 { // nothing at all
			return len(h) == 0
		}
		for k, v := range w {
			if !same(h[k], v) {
				return false
			}
		}
		return true
	}
	return false
}

// body is what is written.
func (i Item) body(makes bool) map[string]any {
	out := map[string]any{}
	if makes {
		maps.Copy(out, i.Creates)
	}
	for k, v := range i.Want {
		out[k] = wire(v)
	}
	return out
}

// wire is the form of a value in a request.
func wire(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return fmt.Sprintf("%ds", int64(v/time.Second))
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = wire(x)
		}
		return out
	}
	return v
}

// show a value to a person.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return fmt.Sprintf("%q", v)
	case time.Duration:
		return v.String()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
