package cli

import (
	"bytes"
	"encoding/json"
)

// ours is the draft that definitions are written in.
const ours = "https://json-schema.org/draft/2020-12/schema"

// offeredSchema is a server's schema as a definition may have it.
type offeredSchema struct {
	text []byte
	// draft that the server writes for; empty when it is ours.
	draft string
	// wordy says that words of the server were left out.
	wordy bool
}

// offered leaves out that a schema is of another draft, which for those of tools
// seldom makes a difference, and, unless words are wanted, what only speaks to a
// reader: a model is one. The pin stays that of the server's own schema.
func offered(schema string, words bool) (out offeredSchema, err error) {
	var members map[string]any
	dec := json.NewDecoder(bytes.NewReader([]byte(schema)))
	dec.UseNumber()
	if err := dec.Decode(&members); err != nil {
		return out, err
	}
	if said, ok := members["$schema"].(string); ok && said != ours {
		out.draft = said
		delete(members, "$schema")
	}
	if !words {
		out.wordy = silence(members)
	}
	out.text, err = json.Marshal(members)
	return out, err
}

// namedSchemas are the members whose own members are names, each with a schema.
var namedSchemas = map[string]bool{"properties": true, "patternProperties": true, "$defs": true, "definitions": true, "dependentSchemas": true}

// silence takes what only speaks to a reader out of a schema, and reports whether
// there was any. Values of arguments are no schemas and stay.
func silence(schema map[string]any) (found bool) {
	for name, v := range schema {
		switch name {
		case "description", "title", "$comment", "examples":
			delete(schema, name)
			found = true
		case "const", "default", "enum", "required", "dependentRequired":
		default:
			found = silenceIn(v, namedSchemas[name]) || found
		}
	}
	return found
}

func silenceIn(v any, named bool) (found bool) {
	switch v := v.(type) {
	case map[string]any:
		if !named {
			return silence(v)
		}
		for _, one := range v {
			found = silenceIn(one, false) || found
		}
	case []any:
		for _, one := range v {
			found = silenceIn(one, false) || found
		}
	}
	return found
}
