package ssh

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"bivouac/edge/protocol"
)

// Bounds of a command.
const (
	DefaultTimeout = time.Minute
	maxWords       = 64
	maxValue       = 4 << 10 // of one argument
	maxLine        = 8 << 10
)

// keyName stands for the call's idempotency key.
const keyName = "idempotency_key"

// Command is what the broker's file lets be run on a host.
type Command struct {
	// Run is the program with its arguments, a word each; {name} is an argument of the
	// tool.
	Run []string
	// Inspect looks whether a call of Run happened, by the call's key: 0 says that it did,
	// 10 that it did not and cannot any more, and everything else says nothing. Empty:
	// there is no look-up.
	Inspect []string
	// Idempotent: running it twice does no more than running it once. One whose run has the
	// call's key is so by what stands there.
	Idempotent bool
	// Patterns that arguments match as a whole, by name. See Check for those without one.
	Patterns map[string]string
	// Timeout of one call; a tool's own may be shorter.
	Timeout time.Duration
}

var (
	placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]*)\}`)
	besideForm  = regexp.MustCompile(`^[A-Za-z0-9_./:@,+=%-]*$`)
	// within a word, without a pattern, an argument is a name.
	withinForm = regexp.MustCompile(`^[A-Za-z0-9_@:+][A-Za-z0-9_.@:+-]*$`)
	plainWord  = regexp.MustCompile(`^[A-Za-z0-9_./:@,+-]+$`)
)

// keyed reports that a command is told which call it is of.
func (c Command) keyed() bool { return strings.Contains(strings.Join(c.Run, " "), "{"+keyName+"}") }

// Check lists what is wrong with a command.
func (c Command) Check() (out []error) {
	if len(c.Run) == 0 {
		out = append(out, fmt.Errorf("run is missing: the program and its arguments, a word each"))
	}
	named := map[string]bool{}
	for field, words := range map[string][]string{"run": c.Run, "inspect": c.Inspect} {
		for _, err := range c.checkWords(words) {
			out = append(out, fmt.Errorf("%s: %w", field, err))
		}
		for _, w := range words {
			for _, m := range placeholder.FindAllStringSubmatch(w, -1) {
				named[m[1]] = true
			}
		}
	}
	const key = "{" + keyName + "}"
	inRun, inLook := strings.Join(c.Run, " "), strings.Join(c.Inspect, " ")
	if len(c.Inspect) > 0 && !(strings.Contains(inRun, key) && strings.Contains(inLook, key)) {
		out = append(out, fmt.Errorf("inspect: %s is missing from run or from inspect: only what run left at the host under the call's own key says whether this call of it happened", key))
	}
	for _, m := range placeholder.FindAllStringSubmatch(inLook, -1) {
		if m[1] != keyName && !strings.Contains(inRun, m[0]) {
			out = append(out, fmt.Errorf("inspect: %s is no argument of run: a look-up has those of the call that it looks for", m[0]))
		}
	}
	for name, pattern := range c.Patterns {
		if name == keyName {
			out = append(out, fmt.Errorf("argument %q is the call's own key, which no model gives: it has no block", name))
		} else if !named[name] {
			out = append(out, fmt.Errorf("argument %q stands neither in run nor in inspect", name))
		}
		if _, err := whole(pattern); err != nil || pattern == "" {
			out = append(out, fmt.Errorf("argument %q: pattern %q is no regular expression (RE2)", name, pattern))
		}
	}
	return out
}

// whole is a pattern that matches all of a text. It is one by itself first: with half of
// a group it would close what is put around it.
func whole(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`^(?:` + pattern + `)$`)
}

func (c Command) checkWords(words []string) (out []error) {
	if len(words) > maxWords {
		out = append(out, fmt.Errorf("it has %d words: at most %d", len(words), maxWords))
	}
	for i, w := range words {
		beside := placeholder.ReplaceAllString(w, "")
		holds := beside != w
		switch {
		case strings.ContainsFunc(w, unicode.IsControl):
			out = append(out, fmt.Errorf("%q has a control character in it", w))
		case i == 0 && (w == "" || holds):
			out = append(out, fmt.Errorf("%q is no program: no argument says which one runs", w))
		case holds && !besideForm.MatchString(beside):
			out = append(out, fmt.Errorf("%q: beside an argument a word has letters, digits and _ . / : @ , + = %% - alone: what a program reads as code cannot be filled", w))
		case holds && !c.plain(w) && isCode(words[:i]):
			out = append(out, fmt.Errorf("%q may be run as a program, or as a part of one: give it to a script as an argument of its own, as in \"sh\", \"-c\", \"… \\\"$1\\\"\", \"sh\", \"{name}\", or give each argument in it a pattern that admits plain names alone, as \"[a-z0-9][a-z0-9_.-]*\"", w))
		}
	}
	return out
}

// plain reports a word whose arguments are all bound to plain names by their patterns.
// The call's key is one.
func (c Command) plain(word string) bool {
	for _, m := range placeholder.FindAllStringSubmatch(word, -1) {
		if m[1] != keyName && !plainNames(c.Patterns[m[1]]) {
			return false
		}
	}
	return true
}

// args are a call's arguments, and which of them were used.
type args struct {
	values   map[string]json.RawMessage
	patterns map[string]string
	used     map[string]bool
}

func invalid(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "the command cannot be run: "+format, args...)
}

// line fills words from canonical arguments and the call's key, and quotes each as one
// word. An argument that run would drop is refused; a look-up has those of its call.
func (c Command) line(inspects bool, canonical []byte, key string) (string, error) {
	a := args{patterns: c.Patterns, used: map[string]bool{}}
	if err := json.Unmarshal(canonical, &a.values); err != nil || a.values == nil {
		return "", invalid("the arguments must be a JSON object")
	}
	if _, own := a.values[keyName]; own { // it would pass for another call
		return "", invalid("argument %q is the call's own key: no caller gives it", keyName)
	}
	text, err := json.Marshal(key)
	if err != nil {
		return "", err
	}
	a.values[keyName], a.used[keyName] = text, true
	words := c.Run
	if inspects {
		words = c.Inspect
	}
	out := make([]string, 0, len(words))
	for _, w := range words {
		filled, err := a.fill(w)
		if err != nil {
			return "", err
		}
		out = append(out, quote(filled))
	}
	for name := range a.values {
		if !inspects && !a.used[name] {
			return "", invalid("argument %q stands nowhere in the command: see its block in broker.hcl", name)
		}
	}
	line := strings.Join(out, " ")
	if len(line) > maxLine {
		return "", invalid("it has %d bytes: at most %d", len(line), maxLine)
	}
	return line, nil
}

// fill one word.
func (a args) fill(word string) (string, error) {
	var first error
	alone := placeholder.FindString(word) == word
	out := placeholder.ReplaceAllStringFunc(word, func(m string) string {
		v, err := a.value(m[1:len(m)-1], alone)
		if err != nil && first == nil {
			first = err
		}
		return v
	})
	return out, first
}

// value of an argument, held against its pattern. Without one it is a name within a
// word, and alone it is any text but an option and nothing.
func (a args) value(name string, alone bool) (text string, err error) {
	raw, there := a.values[name]
	a.used[name] = true
	switch {
	case !there || string(raw) == "null":
		return "", invalid("argument %q is missing", name)
	case raw[0] == '"':
		if err := json.Unmarshal(raw, &text); err != nil {
			return "", invalid("argument %q cannot be read", name)
		}
	case raw[0] == '{' || raw[0] == '[':
		return "", invalid("argument %q is no plain value, and cannot be a word", name)
	default:
		text = string(raw)
	}
	if strings.ContainsFunc(text, unicode.IsControl) || len(text) > maxValue {
		return "", invalid("argument %q has a control character (perhaps a line end), or more than %d bytes", name, maxValue)
	}
	const mend = "a pattern in its argument block in broker.hcl can admit it"
	pattern, declared := a.patterns[name]
	switch {
	case name == keyName && !withinForm.MatchString(text):
		return "", invalid("the call's key is none")
	case declared:
		re, err := whole(pattern)
		if err != nil || !re.MatchString(text) {
			return "", invalid("argument %q does not match the pattern %q of broker.hcl", name, pattern)
		}
	case text == "":
		return "", invalid("argument %q is empty: %s", name, mend)
	case alone && text[0] == '-':
		return "", invalid("argument %q begins with a hyphen, and would be read as an option: %s", name, mend)
	case !alone && !withinForm.MatchString(text):
		return "", invalid("argument %q stands within a word, and has more than letters, digits and _ . @ : + - in it, or begins with a dot: %s", name, mend)
	}
	return text, nil
}

// quote makes s one word of the line, for whichever shell the host's user has: what is
// special even between single quotes (in fish a backslash, in csh an exclamation mark)
// stands outside of them, after a backslash, which all of them read alike.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.NewReplacer("'", `'\''`, `\`, `'\\'`, "!", `'\!'`).Replace(s) + "'"
}
