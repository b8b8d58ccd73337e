// Package tool holds the fixed workspace tools: read, write, list, search. The
// worker's binary runs one of them as a process of its own in sandbox B, with
// the arguments as JSON on standard input and the answer as text on standard
// output. So nothing on the host follows a path or a link of the workspace.
//
// Even there a tool stays below the workspace: a link that leaves it is refused
// with a reason that a model can read. Arguments are parsed strictly. Output is
// bounded and says where it was cut.
package tool

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Exit codes of a tool's process.
const (
	ExitOK      = 0
	ExitFailed  = 1 // the output says why
	ExitInvalid = 2 // the arguments are not accepted
)

// Bounds of one answer.
const (
	maxRead    = 1 << 20
	maxEntries = 2000
	maxMatches = 500
	maxLine    = 400
)

// tools by their name: the part of the tool's reference after "sandbox.".
var tools = map[string]func(*os.Root, json.RawMessage, io.Writer) error{
	"read":   read,
	"write":  write,
	"list":   list,
	"search": search,
}

// Run runs one tool on the workspace at root and returns its exit code.
func Run(name, root string, arguments io.Reader, output io.Writer) int {
	run := tools[name]
	if run == nil {
		fmt.Fprintf(output, "there is no tool %q", name)
		return ExitInvalid
	}
	raw, err := io.ReadAll(arguments)
	if err != nil {
		fmt.Fprintf(output, "the arguments cannot be read: %v", err)
		return ExitInvalid
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		fmt.Fprintf(output, "the workspace cannot be opened: %v", err)
		return ExitFailed
	}
	defer r.Close()
	out := bufio.NewWriter(output)
	defer out.Flush()
	err = run(r, raw, out)
	var invalid invalidError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &invalid):
		fmt.Fprint(out, invalid)
		return ExitInvalid
	}
	fmt.Fprint(out, plain(err))
	return ExitFailed
}

// invalidError is about the arguments alone.
type invalidError string

func (e invalidError) Error() string { return string(e) }

func parse(raw json.RawMessage, into any) error {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return invalidError("the arguments are not accepted: " + err.Error())
	}
	return nil
}

// inside makes a path of the model relative to the workspace.
func inside(name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "/workspace"); ok && (rest == "" || rest[0] == '/') {
		name = strings.TrimPrefix(rest, "/")
	}
	if path.IsAbs(name) {
		return "", fmt.Errorf("%s is outside of the workspace; paths are relative to its top", name)
	}
	clean := path.Clean("./" + name)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fmt.Errorf("%s is outside of the workspace; paths are relative to its top", name)
	}
	return clean, nil
}

// plain drops Go's operation names from an error.
func plain(err error) string {
	var pe *fs.PathError
	switch {
	case !errors.As(err, &pe):
		return err.Error()
	case errors.Is(pe.Err, fs.ErrNotExist):
		return pe.Path + " does not exist"
	case strings.Contains(pe.Err.Error(), "escapes"):
		return pe.Path + " leads out of the workspace through a link"
	}
	return pe.Path + ": " + pe.Err.Error()
}

func read(root *os.Root, raw json.RawMessage, out io.Writer) error {
	var a struct {
		Path string `json:"path"`
	}
	if err := parse(raw, &a); err != nil {
		return err
	}
	name, err := inside(a.Path)
	if err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return err
	case st.IsDir():
		return fmt.Errorf("%s is a folder; list it", name)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err != nil {
		return err
	}
	cut := len(b) > maxRead
	if cut {
		b = b[:maxRead]
		for i := 0; i < utf8.UTFMax && !utf8.Valid(b[max(0, len(b)-utf8.UTFMax):]); i++ {
			b = b[:len(b)-1]
		}
	}
	if !utf8.Valid(b) || slices.Contains(b, 0) {
		return fmt.Errorf("%s is not text (%d bytes); look at it with a command of the shell", name, st.Size())
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	if cut {
		fmt.Fprintf(out, "\n[truncated: the first %d of %d bytes]", len(b), st.Size())
	}
	return nil
}

func write(root *os.Root, raw json.RawMessage, out io.Writer) error {
	var a struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if err := parse(raw, &a); err != nil {
		return err
	}
	name, err := inside(a.Path)
	if err != nil {
		return err
	}
	if name == "." {
		return fmt.Errorf("a file needs a name")
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if st, err := root.Stat(name); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, a.Content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "wrote %d bytes to %s", len(a.Content), name)
	return nil
}

func list(root *os.Root, raw json.RawMessage, out io.Writer) error {
	var a struct {
		Path string `json:"path"`
	}
	if err := parse(raw, &a); err != nil {
		return err
	}
	name, err := inside(a.Path)
	if err != nil {
		return err
	}
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for i, e := range entries {
		if i == maxEntries {
			fmt.Fprintf(out, "[truncated: the first %d of %d entries]\n", maxEntries, len(entries))
			break
		}
		fmt.Fprintln(out, describe(root, name, e))
	}
	if len(entries) == 0 {
		fmt.Fprintln(out, "(empty)")
	}
	return nil
}

func describe(root *os.Root, dir string, e fs.DirEntry) string {
	name := strings.ToValidUTF8(e.Name(), "\uFFFD")
	switch {
	case e.IsDir():
		return name + "/"
	case e.Type()&fs.ModeSymlink != 0:
		target, _ := root.Readlink(path.Join(dir, e.Name()))
		return name + " -> " + target
	case e.Type().IsRegular():
		if st, err := e.Info(); err == nil {
			return fmt.Sprintf("%s (%d bytes)", name, st.Size())
		}
	}
	return name + " (special file)"
}
