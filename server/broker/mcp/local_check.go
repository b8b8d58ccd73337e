package mcp

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/redact"
)

var (
	// secretForm is an argument that says it carries a secret.
	secretForm = regexp.MustCompile(`(?i)(^|[-_.?&;\s])(token|secret|password|passwd|passphrase|pass|pwd|pat|authorization|(api|access|private|secret|auth)[-_]?key|credentials?|bearer)(=|:|$)`)
	// headerForm is one that says so in its value.
	headerForm = regexp.MustCompile(`(?i)=["']?(token|secret|password|passwd|passphrase|(proxy-)?authorization|x-api-key|credentials?)\s*[:=]`)
	// camelForm is one that says so in the middle of a word.
	camelForm = regexp.MustCompile(`[a-z0-9](Token|Secret|Password|Passphrase|(Api|API|Access|Private|Secret)Key|Credentials?)(=|:|$)`)
	// schemeForm is a value of the Authorization header.
	schemeForm = regexp.MustCompile(`(?i)(^|[=:\s])(basic|bearer|digest|token)\s+[A-Za-z0-9._~+/=-]{4,}`)
	// issuerForm begins as the tokens of well-known issuers do, of whatever length.
	issuerForm = regexp.MustCompile(`(^|[=:\s])(gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|sk-|[rs]k_live_|AKIA|ASIA|AIza|hv[sbr]\.|AGE-SECRET-KEY-)[A-Za-z0-9_.-]{6,}`)
	// userForm is an address with a password.
	userForm = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@]*:[^/?#\s]*@`)
)

// bringsSecret reports an argument that carries a secret, or says that it does. It is
// seen by everybody on the machine, and by the program, which is no one to hold it.
func bringsSecret(a string) bool {
	for _, form := range []*regexp.Regexp{secretForm, headerForm, camelForm, schemeForm, issuerForm, userForm} {
		if form.MatchString(a) {
			return true
		}
	}
	_, found := redact.Text(a)
	return found > 0
}

// Places that no sandbox is shown: what runs on the machine and may be talked to, what
// the machine and its people keep their secrets in. Whole ones are refused as they
// stand; a folder below may be meant.
var (
	closedPlaces = []string{"/run", "/var/run", "/proc", "/sys", "/dev", "/etc", "/boot", "/var/lib/bivouac", "/var/lib/bivouac-broker"}
	wholePlaces  = []string{"/", "/home", "/root", "/var", "/var/lib", "/var/spool", "/mnt", "/media"}
)

// instead is what to do with data that stands in a place that is refused.
const instead = "put what it shall read into a folder of its own, such as /srv/notes, and name that"

// exposes says why a folder may not be shown; nil: it may. private are folders of the
// broker.
func exposes(dir string, private ...string) error {
	dir = filepath.Clean(dir)
	for _, p := range closedPlaces {
		if within(dir, []string{p}) {
			return fmt.Errorf("read_only may not show %s, which is of the machine itself (%s): %s", dir, p, instead)
		}
	}
	for _, p := range wholePlaces {
		if dir == p {
			return fmt.Errorf("read_only may not show the whole of %s: %s", dir, instead)
		}
	}
	if of, hidden := home(dir); of {
		return fmt.Errorf("read_only may not show %s, %s: %s", dir, hidden, instead)
	}
	for _, p := range private {
		if p != "" && (within(dir, []string{p}) || within(p, []string{dir})) {
			return fmt.Errorf("read_only may not show %s: it holds, or lies in, the broker's own folder %s, with its keyring: %s", dir, p, instead)
		}
	}
	return nil
}

// home reports a person's whole home, or a hidden folder there.
func home(dir string) (of bool, why string) {
	rest, root := strings.CutPrefix(dir, "/root/")
	if !root {
		var below bool
		if rest, below = strings.CutPrefix(dir, "/home/"); !below {
			return false, ""
		}
		var inside bool
		if _, rest, inside = strings.Cut(rest, "/"); !inside {
			return true, "a whole home"
		}
	}
	return strings.HasPrefix(rest, "."), "a hidden folder of a home"
}

// Check refuses a command that no sandbox takes, that seems to bring a secret, or that
// is shown what no program may see.
func (l Local) Check() (out []error) {
	if len(l.Command) == 0 || !filepath.IsAbs(l.Command[0]) || filepath.Clean(l.Command[0]) != l.Command[0] {
		return []error{fmt.Errorf("command must begin with the absolute path of a program: nothing is looked up in PATH")}
	}
	for n, a := range l.Command[1:] {
		if bringsSecret(a) {
			out = append(out, fmt.Errorf("argument %d%s seems to bring a secret, and no sandbox ever holds one: run a server that needs one by itself, as streamable HTTP, and bind its credential to its url", n+1, named(a)))
		}
	}
	if err := l.process().Validate(); err != nil {
		out = append(out, err)
	}
	for _, dir := range l.ReadOnly {
		if err := exposes(dir); err != nil {
			out = append(out, err)
		}
	}
	return out
}

// optionForm is the name of an option.
var optionForm = regexp.MustCompile(`^--?[A-Za-z][A-Za-z_-]{1,30}$`)

// named is an argument's name without its value, where it has one.
func named(a string) string {
	if name, _, _ := strings.Cut(a, "="); optionForm.MatchString(name) {
		return fmt.Sprintf(" (%s)", name)
	}
	return ""
}

// maxLooked bounds the search for sockets.
const maxLooked = 20_000

// Exposed refuses, on this machine, what only the machine knows: where a link leads,
// where the broker keeps its keyring, and sockets, over which a program would reach out
// of its sandbox. INV-12.
func (l Local) Exposed(private ...string) error {
	for i, p := range private {
		private[i] = linked(p)
	}
	for _, dir := range l.ReadOnly {
		at := linked(dir)
		if err := exposes(at, private...); err != nil {
			return err
		}
		looked := 0
		err := filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
			if looked++; looked > maxLooked {
				return fs.SkipAll
			}
			if err == nil && d.Type()&(fs.ModeSocket|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
				return fmt.Errorf("read_only may not show %s: %s is a socket, a pipe or a device, over which a program leaves its sandbox: %s", dir, path, instead)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// linked is a path without links, as far as it is there.
func linked(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	return path
}

// Missing says what is not on this machine as the file names it.
func (l Local) Missing() error {
	if st, err := os.Stat(l.Command[0]); err != nil || st.IsDir() || st.Mode()&0o111 == 0 {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is no program on this machine", l.Command[0])
	}
	for _, dir := range l.ReadOnly {
		if _, err := os.Stat(dir); err != nil {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "%s, which read_only names, is not on this machine", dir)
		}
	}
	return nil
}
