package api

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/server/api/apiv1"
)

// What cannot be read says where, and what was expected; what can be read is, a
// newer client's fields among it.
func TestBodiesSayWhatWasExpected(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"empty":        {"", "the body is empty: send the JSON object"},
		"not JSON":     {"hello", "(line 1:1)"},
		"cut off":      {`{"session_id": "ses_`, "the body cannot be read"},
		"another kind": {`{"prompt": 7}`, "prompt"},
		"no UTF-8":     {"{\"prompt\": \"caf\xe9\"}", "UTF-8"},
		"a list":       {`[]`, "(line 1:1)"},
	} {
		err := jsonBodies{}.Unmarshal([]byte(tc.body), &apiv1.SubmitTurnRequest{})
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), `"prompt": text in UTF-8`) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "proto:") {
			t.Errorf("%s: a decoder's own words: %v", name, err)
		}
	}
	want := &apiv1.SubmitTurnRequest{SessionId: "ses_x", Prompt: "hello"}
	b, err := jsonBodies{}.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{string(b), `{"session_id":"ses_x","prompt":"hello","from_tomorrow":1}`} {
		got := &apiv1.SubmitTurnRequest{}
		if err := (jsonBodies{}).Unmarshal([]byte(body), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}
