package main

import (
	"io"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// Flags of an enrolment go together: one alone is a mistake that is said before anything
// is made, and none of them is a start as ever.
func TestEnrolFlags(t *testing.T) {
	dir := t.TempDir()
	for args, says := range map[string]string{
		"--enrol-server https://h:7401":                 "--enrol-fingerprint and --enrol-identity-file must be given too",
		"--enrol-identity-file x --enrol-fingerprint y": "--enrol-server must be given too",
		"--enrol-name desk":                             "--enrol-server and --enrol-fingerprint and --enrol-identity-file",
		"--enrol-server https://h:7401 --enrol-fingerprint y --enrol-identity-file x": "64 hexadecimal digits",
		"": "there is no runner in",
	} {
		root := command()
		root.SetArgs(append([]string{"run", "--state", dir + "/state"}, strings.Fields(args)...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		if code := protocol.CodeOf(err); code != protocol.CodeInvalidArgument && code != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
