package ssh

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// hostile arguments, of which a shell that read them as code would do something.
var hostile = []string{
	"$(touch x)", "`id`", "a; id", "a && id", "a | id", "a > x", "'; id; '", `"; id; "`, `\'; id; '`, `a\`, `\`, "!!", "!id", "$HOME", "*", "~", "~root", "a b", "#", "&", "{a,b}", "(id)",
	"é ü 漢", "''", `'\''`, "=ls", "[a]", "%1", `$'\n'`, "\u2028",
}

// Each argument is one word of the line, and the words are those that were given: a
// shell says so.
func TestLineIsWords(t *testing.T) {
	shells := []string{"sh", "bash", "dash", "zsh", "fish", "tcsh", "ksh"}
	var there []string
	for _, s := range shells {
		if p, err := exec.LookPath(s); err == nil {
			there = append(there, p)
		}
	}
	if len(there) == 0 {
		t.Fatal("no shell at all")
	}
	t.Log(there)
	c := Command{Run: []string{"printf", "%s\\n", "a literal word; id", "{x}", "end", ""}}
	if p := c.Check(); len(p) > 0 {
		t.Fatal(p)
	}
	for _, text := range hostile {
		line, err := c.line(false, []byte(fmt.Sprintf(`{"x":%s}`, jsonOf(t, text))), "key-1")
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, shell := range there {
			out, err := exec.Command(shell, "-c", line).Output()
			if want := "a literal word; id\n" + text + "\nend\n\n"; err != nil || string(out) != want {
				t.Errorf("%s %q: %q %v, from %s", shell, text, out, err, line)
			}
		}
	}
}

func TestLineRefuses(t *testing.T) {
	c := Command{
		Run:      []string{"once", "{idempotency_key}", "restart", "{unit}", "--by={who}", "{count}"},
		Inspect:  []string{"once", "--look={idempotency_key}", "{unit}"},
		Patterns: map[string]string{"count": "-?[0-9]+"},
	}
	if p := c.Check(); len(p) > 0 {
		t.Fatal(p)
	}
	all := func(unit, who, count string) string {
		return fmt.Sprintf(`{"count":%s,"unit":%s,"who":%s}`, count, unit, who)
	}
	for name, tc := range map[string]struct{ arguments, want, says string }{
		"as meant":             {all(`"web"`, `"ann"`, "-3"), "once key-1 restart web '--by=ann' -3", ""},
		"numbers and booleans": {all("true", "7", `"12"`), "once key-1 restart true '--by=7' 12", ""},
		"an option":            {all(`"--force"`, `"ann"`, "1"), "", "begins with a hyphen"},
		"nothing":              {all(`""`, `"ann"`, "1"), "", "is empty"},
		"null":                 {all("null", `"ann"`, "1"), "", "is missing"},
		"absent":               {`{"unit":"web","count":1}`, "", `"who" is missing`},
		"one more":             {`{"count":1,"unit":"web","who":"ann","also":"x"}`, "", `"also" stands nowhere`},
		"an object":            {all(`{}`, `"ann"`, "1"), "", "no plain value"},
		"a list":               {all(`["a"]`, `"ann"`, "1"), "", "no plain value"},
		"a line end":           {all(`"a\nid"`, `"ann"`, "1"), "", "control character"},
		"a zero":               {all(`"a\u0000b"`, `"ann"`, "1"), "", "control character"},
		"out of its folder":    {all(`"web"`, `"../x"`, "1"), "", "within a word"},
		"two words":            {all(`"web"`, `"a b"`, "1"), "", "within a word"},
		"against its pattern":  {all(`"web"`, `"ann"`, `"1; id"`), "", "does not match the pattern"},
		"long":                 {all(`"`+strings.Repeat("x", maxValue+1)+`"`, `"ann"`, "1"), "", "more than"},
		"no object":            {`[]`, "", "JSON object"},
		"another call's key":   {`{"count":1,"idempotency_key":"key-0","unit":"web","who":"ann"}`, "", "is the call's own key"},
	} {
		line, err := c.line(false, []byte(tc.arguments), "key-1")
		if line != tc.want || (tc.says == "") != (err == nil) || err != nil && (protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %q %v", name, line, err)
		}
	}
	if line, err := c.line(true, []byte(all(`"web"`, `"ann"`, "1")), "key-1"); err != nil || line != "once '--look=key-1' web" {
		t.Errorf("%q %v", line, err)
	}
	if line, err := c.line(true, []byte(`{"idempotency_key":"key-0","unit":"web"}`), "key-1"); err == nil {
		t.Errorf("a look-up by another call's key: %q", line)
	}
	if line, err := c.line(true, []byte(`{"unit":"web"}`), "-k"); err == nil {
		t.Errorf("a key that is an option: %q", line)
	}
	long := Command{Run: []string{"echo", "{a}", "{b}", "{c}"}}
	x := `"` + strings.Repeat("x", maxValue) + `"`
	if _, err := long.line(false, []byte(`{"a":`+x+`,"b":`+x+`,"c":`+x+`}`), ""); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("%v", err)
	}
}

// What the operator's file may say of a command. The twins are the sound ones.
func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		c    Command
		want string
	}{
		"sound":                   {Command{Run: []string{"df", "-h", "/srv/{volume}"}}, ""},
		"a script with arguments": {Command{Run: []string{"sh", "-c", `test -e "$1"`, "sh", "{file}"}}, ""},
		"braces that are none":    {Command{Run: []string{"find", "/srv", "-exec", "wc", "{}", ";"}}, ""},
		"an option that counts":   {Command{Run: []string{"ping", "-c", "{n}", "{host}"}}, ""},
		"with a look-up":          {Command{Run: []string{"mk", "{a}", "{idempotency_key}"}, Inspect: []string{"test", "-e", "{a}", "{idempotency_key}"}, Patterns: map[string]string{"a": "[a-z]+"}}, ""},
		"a look-up by no key":     {Command{Run: []string{"mk", "{a}", "{idempotency_key}"}, Inspect: []string{"test", "-e", "{a}"}}, "is missing from run or from inspect"},
		"a key that is not kept":  {Command{Run: []string{"mk", "{a}"}, Inspect: []string{"test", "-e", "{idempotency_key}"}}, "is missing from run or from inspect"},
		"a pattern of the key":    {Command{Run: []string{"mk", "{idempotency_key}"}, Patterns: map[string]string{"idempotency_key": ".*"}}, "the call's own key"},
		"nothing":                 {Command{}, "run is missing"},
		"any program":             {Command{Run: []string{"{program}"}}, "no program"},
		"half a program":          {Command{Run: []string{"/opt/{x}/run"}}, "no program"},
		"code":                    {Command{Run: []string{"sh", "-c", "{script}"}}, "may be run as a program"},
		"code of bash":            {Command{Run: []string{"/usr/bin/env", "bash", "-lc", "{script}"}}, "may be run as a program"},
		"code of python":          {Command{Run: []string{"python3", "-c", "{script}"}}, "may be run as a program"},
		"code of perl":            {Command{Run: []string{"perl", "-e", "{script}"}}, "may be run as a program"},
		"filled code":             {Command{Run: []string{"sh", "-c", "rm {file}"}}, "reads as code"},
		"filled quotes":           {Command{Run: []string{"awk", "'{x}'"}}, "reads as code"},
		"a line end":              {Command{Run: []string{"echo", "a\nb"}}, "control character"},
		"looks for another":       {Command{Run: []string{"mk", "{a}", "{idempotency_key}"}, Inspect: []string{"test", "-e", "{b}", "{idempotency_key}"}}, "no argument of run"},
		"a pattern of nobody":     {Command{Run: []string{"mk", "{a}"}, Patterns: map[string]string{"b": "x"}}, "stands neither"},
		"halves of a pattern":     {Command{Run: []string{"mk", "{a}"}, Patterns: map[string]string{"a": "prod)|(?:dev"}}, "no regular expression"},
		"no pattern":              {Command{Run: []string{"mk", "{a}"}, Patterns: map[string]string{"a": "("}}, "no regular expression"},
		"too many":                {Command{Run: strings.Fields(strings.Repeat("a ", maxWords+1))}, "at most"},
	} {
		p := tc.c.Check()
		if (tc.want == "") != (len(p) == 0) || len(p) > 0 && !strings.Contains(p[0].Error(), tc.want) {
			t.Errorf("%s: %v", name, p)
		}
	}
}
