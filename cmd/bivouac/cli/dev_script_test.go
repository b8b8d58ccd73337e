package cli

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac/server/broker/scripted"
)

// With two machines the script of bivouac dev takes "… on MACHINE", and otherwise
// answers with their names; with one it does as it was asked.
func TestDefaultScriptNamesMachines(t *testing.T) {
	script, err := (&dev{}).script()
	if err != nil {
		t.Fatal(err)
	}
	p := scripted.New(scripted.Config{Script: script})
	for _, c := range []struct {
		said           string
		several        bool
		call, contains string
	}{
		{"which folders do you have?", false, `{"path":""}`, ""},
		{"which folders do you have?", true, "", "laptop, vm. Say on which, such as: which folders do you have on laptop"},
		{"which folders do you have on vm?", true, `{"machine":"vm","path":""}`, ""},
		{"read notes/todo.txt", false, `{"path":"notes/todo.txt"}`, ""},
		{"read notes/todo.txt", true, "", "such as: read notes/todo.txt on laptop"},
		{"read notes/todo.txt on Laptop", true, `{"machine":"laptop","path":"notes/todo.txt"}`, ""},
		{"read notes/todo.txt on desktop", true, "", "laptop, vm"},
		{"write notes/a: buy bread", false, `{"content":"buy bread\n","path":"notes/a"}`, ""},
		{"write notes/a on vm: buy bread", false, `{"content":"buy bread\n","path":"notes/a"}`, ""},
		{"write notes/a: buy bread on Sunday", true, "", "such as: write notes/a on laptop: buy bread on Sunday"},
		{"write notes/a on vm: buy bread on Sunday", true, `{"content":"buy bread on Sunday\n","machine":"vm","path":"notes/a"}`, ""},
		{"write notes/a: buy bread on vm", true, `{"content":"buy bread\n","machine":"vm","path":"notes/a"}`, ""},
	} {
		text, call := answerOf(t, p, c.said, c.several)
		if call != c.call || !strings.Contains(text, c.contains) {
			t.Errorf("%q, several machines %v: %q, call %s", c.said, c.several, text, call)
		}
	}
}

// A machine that lets files be read, and none be written, is no machine without folders.
func TestDefaultScriptSaysWhatIsNotOffered(t *testing.T) {
	script, err := (&dev{}).script()
	if err != nil {
		t.Fatal(err)
	}
	p := scripted.New(scripted.Config{Script: script})
	for _, c := range []struct {
		said, contains string
		tools          []string
	}{
		{"write notes/a: buy bread", "lets files be read, and none be written", []string{"files_list", "files_read"}},
		{"write notes/a: buy bread", "No machine of yours offers a folder yet", []string{"shell"}},
		{"read notes/a", "No machine of yours offers a folder yet", []string{"shell"}},
		{"write notes/a: buy bread", "I will write notes/a", []string{"files_list", "files_read", "files_write"}},
	} {
		if text, _ := answerOf(t, p, c.said, false, c.tools...); !strings.Contains(text, c.contains) {
			t.Errorf("%q with %v: %q", c.said, c.tools, text)
		}
	}
}

// answerOf the provider to one prompt, where one machine or several offer folders.
func answerOf(t *testing.T, p *scripted.Provider, said string, several bool, offered ...string) (text, call string) {
	t.Helper()
	schema := `{"type":"object","properties":{"path":{"type":"string"}}}`
	if several {
		schema = `{"type":"object","properties":{"path":{"type":"string"},"machine":{"type":"string","enum":["laptop","vm"]}}}`
	}
	if len(offered) == 0 {
		offered = []string{"files_list", "files_read", "files_write"}
	}
	var tools []string
	for _, name := range offered {
		tools = append(tools, fmt.Sprintf(`{"type":"function","function":{"name":%q,"parameters":%s}}`, name, schema))
	}
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"tools":[%s]}`, said, strings.Join(tools, ","))
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
	var res struct {
		Choices []struct {
			Message struct {
				Content   string `json:"content"`
				ToolCalls []struct {
					Function struct{ Arguments string }
				} `json:"tool_calls"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &res); err != nil || len(res.Choices) != 1 {
		t.Fatalf("%q: %d %s (%v)", said, w.Code, w.Body, err)
	}
	m := res.Choices[0].Message
	for _, c := range m.ToolCalls {
		call += c.Function.Arguments
	}
	return m.Content, call
}
