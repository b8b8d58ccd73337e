//go:build linux

package main

import (
	"encoding/base64"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/runtime/runtimev1"
)

// readable is the text of a tool result as an event carries it.
func readable(payload string) string {
	b, err := base64.StdEncoding.DecodeString(payload)
	if err != nil {
		return payload
	}
	var r runtimev1.ToolResult
	if err := proto.Unmarshal(b, &r); err != nil {
		return payload
	}
	return r.GetText()
}
