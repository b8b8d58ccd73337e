// Package schema applies the JSON Schemas (2020-12) of tools. The loop checks
// arguments with it, and policy checks the schemas themselves before a
// definition is accepted.
//
// It guarantees that a schema stands alone: a reference that leaves it is
// refused, nothing is fetched. It refuses other drafts.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// address is where a schema believes it lives; nothing is ever loaded from it.
const address = "tool:///schema.json"

// maxProblems of one validation are told; the rest would only be noise.
const maxProblems = 5

// Schema is a compiled schema.
type Schema struct{ s *jsonschema.Schema }

// alone refuses every reference that leaves the schema.
type alone struct{}

func (alone) Load(url string) (any, error) {
	return nil, fmt.Errorf("a tool's schema stands alone: the reference to %q leaves it", url)
}

// Compile reads a schema, or says why it is none.
func Compile(src string) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(src))
	if err != nil {
		return nil, fmt.Errorf("the schema is not JSON: %w", err)
	}
	if m, ok := doc.(map[string]any); ok {
		if v, ok := m["$schema"]; ok && v != "https://json-schema.org/draft/2020-12/schema" {
			return nil, fmt.Errorf("the schema's $schema is %v: only 2020-12 is used", v)
		}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(alone{})
	if err := c.AddResource(address, doc); err != nil {
		return nil, err
	}
	s, err := c.Compile(address)
	if err != nil {
		return nil, fmt.Errorf("the schema does not compile: %s", oneLine(err))
	}
	return &Schema{s}, nil
}

// Validate checks canonical JSON. The error is for the author of the value: each
// line names a place and what is wrong there, in a fixed order.
func (s *Schema) Validate(value []byte) error {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	err := s.s.Validate(v)
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	return errors.New(strings.Join(problems(ve), "\n"))
}

// problems are the leaves of a validation error. The library walks maps, so the
// order is made here.
func problems(ve *jsonschema.ValidationError) []string {
	var out []string
	for line := range strings.SplitSeq(ve.Error(), "\n") {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "- at "); ok {
			out = append(out, "at "+rest)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxProblems {
		more := len(out) - maxProblems
		out = append(out[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return out
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
