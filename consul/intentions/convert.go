package intentions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"bivouac/consul"
)

// setOf makes the evaluator's set of an answer about one destination. What cannot be
// understood closes the destination, with a reason; an answer that is none is an error.
func setOf(destination string, body []byte) (*consul.Set, error) {
	var answer map[string][]json.RawMessage
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer cannot be read: %w", err)
	}
	all, ok := answer[destination]
	if !ok || len(answer) != 1 {
		return nil, fmt.Errorf("the answer is not about %q", destination)
	}
	entries := map[string]*consul.Intention{}
	var broken error
	for _, raw := range all {
		i, err := readIntention(raw, destination)
		if err != nil {
			broken = errors.Join(broken, err)
			continue
		}
		in := entries[i.DestinationName]
		if in == nil {
			in = &consul.Intention{Destination: i.DestinationName, At: "Consul"}
			entries[i.DestinationName] = in
		}
		if i.closesAll() {
			continue // what nothing names is closed here in any case
		}
		if slices.ContainsFunc(in.Sources, func(s consul.Source) bool { return s.Name == i.SourceName }) {
			broken = errors.Join(broken, fmt.Errorf("two intentions are about %s => %s", i.SourceName, i.DestinationName))
			continue
		}
		s, err := i.source()
		if err != nil {
			broken = errors.Join(broken, err)
			continue
		}
		in.Sources = append(in.Sources, s)
	}
	var list []consul.Intention
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		list = append(list, *entries[name])
	}
	set := consul.NewSet(list...)
	if broken != nil {
		set.Deny(destination, "an intention in Consul cannot be enforced here, so nothing is allowed: "+strings.ReplaceAll(broken.Error(), "\n", "; "))
	}
	return set, nil
}

// intention as Consul's API gives it. Every field that it has must be here, or say
// nothing: one that is not known might be a condition.
type intention struct {
	SourceName, DestinationName string
	SourceNS, DestinationNS     string
	SourcePartition             string
	DestinationPartition        string
	SourcePeer                  string
	SourceSamenessGroup         string
	SourceType                  string
	Action                      string
	Permissions                 []json.RawMessage

	// What says nothing about who may do what.
	ID, Description, Hash            json.RawMessage
	Meta, Precedence                 json.RawMessage
	CreatedAt, UpdatedAt             json.RawMessage
	CreateIndex, ModifyIndex         json.RawMessage
	DefaultAddr, DefaultPort         json.RawMessage
	LegacyID, LegacyMeta             json.RawMessage
	LegacyCreateTime, LegacyUpdateAt json.RawMessage
}

func readIntention(raw []byte, destination string) (intention, error) {
	var i intention
	if err := strict(raw, &i); err != nil {
		return i, fmt.Errorf("%s => %s: %w", i.SourceName, i.DestinationName, err)
	}
	bad := func(format string, args ...any) (intention, error) {
		return i, fmt.Errorf("%s => %s: %s", i.SourceName, i.DestinationName, fmt.Sprintf(format, args...))
	}
	elsewhere := func(name string) bool { return name != "" && name != "default" }
	switch {
	case i.DestinationName != destination && i.DestinationName != consul.Wildcard:
		return bad("it is about another destination")
	case elsewhere(i.SourceNS) || elsewhere(i.DestinationNS):
		return bad("namespaces (%q, %q) are not known here", i.SourceNS, i.DestinationNS)
	case elsewhere(i.SourcePartition) || elsewhere(i.DestinationPartition):
		return bad("partitions (%q, %q) are not known here", i.SourcePartition, i.DestinationPartition)
	case i.SourcePeer != "":
		return bad("it is about the peer %q", i.SourcePeer)
	case i.SourceSamenessGroup != "":
		return bad("it is about the sameness group %q", i.SourceSamenessGroup)
	case i.SourceType != "consul" && i.SourceType != "":
		return bad("the type of its source is %q", i.SourceType)
	case (i.Action != "") == (len(i.Permissions) > 0):
		return bad("it has an action and permissions, or neither")
	case i.DestinationName == consul.Wildcard && len(i.Permissions) > 0:
		return bad("permissions need an exact destination")
	}
	for _, name := range []string{i.SourceName, i.DestinationName} {
		if err := consul.CheckName(name); err != nil {
			return bad("%v", err)
		}
	}
	return i, nil
}

// closesAll reports the deny under everything, which setup makes: it is no word about a
// pair, and whoever opens one need not fear to contradict somebody.
func (i intention) closesAll() bool {
	return i.SourceName == consul.Wildcard && i.DestinationName == consul.Wildcard && i.Action == "deny"
}

func (i intention) source() (consul.Source, error) {
	at := fmt.Sprintf("the intention %s => %s in Consul", i.SourceName, i.DestinationName)
	s := consul.Source{Name: i.SourceName, At: at}
	if len(i.Permissions) == 0 {
		allow, err := allows(i.Action)
		s.Allow = allow
		return s, within(at, err)
	}
	for n, raw := range i.Permissions {
		p, err := permissionOf(raw)
		if err != nil {
			return s, within(fmt.Sprintf("permission %d of %s", n+1, at), err)
		}
		p.At = fmt.Sprintf("permission %d of %s", n+1, at)
		s.Permissions = append(s.Permissions, p)
	}
	return s, nil
}

func within(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func allows(action string) (bool, error) {
	switch action {
	case "allow":
		return true, nil
	case "deny":
		return false, nil
	}
	return false, fmt.Errorf("the action is %q", action)
}

func permissionOf(raw []byte) (out consul.Permission, err error) {
	var p struct {
		Action string
		HTTP   json.RawMessage
		JWT    json.RawMessage
	}
	if err := strict(raw, &p); err != nil {
		return out, err
	}
	if says(p.JWT) {
		return out, errors.New("it asks for a JWT, which is not enforced here")
	}
	if !says(p.HTTP) {
		return out, errors.New("it is not about HTTP")
	}
	if out.Allow, err = allows(p.Action); err != nil {
		return out, err
	}
	out.HTTP, err = httpOf(p.HTTP)
	return out, err
}

func httpOf(raw []byte) (out consul.HTTP, err error) {
	var h struct {
		PathExact, PathPrefix, PathRegex string
		Header                           []json.RawMessage
		Methods                          []string
	}
	if err := strict(raw, &h); err != nil {
		return out, err
	}
	paths := 0
	for _, p := range []string{h.PathExact, h.PathPrefix, h.PathRegex} {
		if p != "" {
			paths++
		}
	}
	switch {
	case paths > 1:
		return out, errors.New("it has more than one path")
	case paths == 0 && len(h.Header) == 0 && len(h.Methods) == 0:
		return out, errors.New("it asks for nothing")
	}
	out = consul.HTTP{PathExact: h.PathExact, PathPrefix: h.PathPrefix}
	if out.PathRegex, err = whole(h.PathRegex); err != nil {
		return out, err
	}
	for _, m := range h.Methods {
		out.Methods = append(out.Methods, strings.ToUpper(m))
	}
	for _, raw := range h.Header {
		x, err := headerOf(raw)
		if err != nil {
			return out, err
		}
		out.Header = append(out.Header, x)
	}
	return out, nil
}

func headerOf(raw []byte) (out consul.Header, err error) {
	var h struct {
		Name, Exact, Prefix, Suffix, Contains, Regex string
		Present, Invert, IgnoreCase                  bool
	}
	if err := strict(raw, &h); err != nil {
		return out, err
	}
	out = consul.Header{
		Name: h.Name, Present: h.Present, Exact: h.Exact, Prefix: h.Prefix, Suffix: h.Suffix, Contains: h.Contains,
		Invert: h.Invert, IgnoreCase: h.IgnoreCase,
	}
	out.Regex, err = whole(h.Regex)
	asks := 0
	for _, is := range []bool{h.Present, h.Exact != "", h.Prefix != "", h.Suffix != "", h.Contains != "", h.Regex != ""} {
		if is {
			asks++
		}
	}
	if err == nil && (asks != 1 || h.Name == "") {
		err = fmt.Errorf("the header %q is not asked for exactly one thing", h.Name)
	}
	return out, err
}

func whole(expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	return consul.Whole(expr)
}

// strict reads an object into out. A field that out does not have must say nothing.
func strict(raw []byte, out any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return err
	}
	known, err := json.Marshal(out)
	if err != nil {
		return err
	}
	var names map[string]json.RawMessage
	if err := json.Unmarshal(known, &names); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, ok := names[name]; !ok && says(fields[name]) {
			return fmt.Errorf("the field %s is not known here", name)
		}
	}
	return nil
}

// says reports a value that is not empty.
func says(raw json.RawMessage) bool {
	switch text := string(bytes.TrimSpace(raw)); text {
	case "", "null", `""`, "false", "0", "[]", "{}":
		return false
	}
	return true
}
