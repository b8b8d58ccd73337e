package api

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// jsonBodies is the JSON of the contract, as Connect writes and reads it. What it
// cannot read it answers with what was expected: a decoder's own words help
// nobody who writes a body by hand.
type jsonBodies struct{}

func (jsonBodies) Name() string   { return "json" }
func (jsonBodies) IsBinary() bool { return false }

func (jsonBodies) Marshal(m any) ([]byte, error) { return jsonBodies{}.MarshalAppend(nil, m) }

func (jsonBodies) MarshalStable(m any) ([]byte, error) { return jsonBodies{}.MarshalAppend(nil, m) }

func (jsonBodies) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, err := message(m)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, p)
}

// Unmarshal ignores fields that a newer client knows.
func (jsonBodies) Unmarshal(b []byte, m any) error {
	p, err := message(m)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return fmt.Errorf("the body is empty: send %s", shape(p.ProtoReflect().Descriptor()))
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, p); err != nil {
		_, why, _ := strings.Cut(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
		return fmt.Errorf("the body cannot be read: %s; expected was %s", why, shape(p.ProtoReflect().Descriptor()))
	}
	return nil
}

func message(m any) (proto.Message, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", m)
	}
	return p, nil
}

// shape is a message as JSON, with the kind of each field as its value.
func shape(of protoreflect.MessageDescriptor) string {
	var fields []string
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		kind := kindWord(f)
		if f.IsList() {
			kind = "[" + kind + ", …]"
		}
		fields = append(fields, fmt.Sprintf("%q: %s", f.Name(), kind))
	}
	return "the JSON object {" + strings.Join(fields, ", ") + "}, in which every field may be left out"
}

func kindWord(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return "text in UTF-8"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.BytesKind:
		return "base64"
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return "object"
	case protoreflect.EnumKind:
		return "name"
	}
	return "number"
}
