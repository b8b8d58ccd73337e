package ssh

import (
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// Programs that make a program of their words. A shell and an interpreter do so up to
// their script; what a re-joiner is given becomes one line of a shell, a script, or the
// program that it starts, wherever it stands.
var (
	shells       = regexp.MustCompile(`^(sh|ash|bash|rbash|dash|zsh|ksh[0-9]*|mksh|fish|csh|tcsh)$`)
	interpreters = regexp.MustCompile(`^(python[0-9.]*|pypy[0-9.]*|perl[0-9.]*|ruby[0-9.]*|node|nodejs|deno|bun|php[0-9.]*|lua[0-9.]*|luajit|tclsh[0-9.]*|expect|Rscript|pwsh|powershell|osascript|guile|emacs)$`)
	rejoiners    = regexp.MustCompile(`^(eval|su|runuser|sg|ssh|mosh|[gmn]?awk|original-awk|busybox|sed|gsed|xargs|parallel|watch|script|flock|at|batch|crontab|make|gmake|git|find|ed|ex|vi|vim|nvim|m4|gdb|sqlite3|psql|mysql|mariadb|tmux|screen|trap|source|chroot|taskset|capsh|gosu|su-exec|setuidgid|s6-setuidgid|chpst)$`)
	// wrappers start the program that follows them.
	wrappers = regexp.MustCompile(`^(env|sudo|doas|pkexec|run0|nohup|nice|ionice|chrt|timeout|setsid|stdbuf|unshare|nsenter|time|exec|command|builtin|systemd-run|strace|ltrace|setpriv|unbuffer)$`)

	codeFlag  = regexp.MustCompile(`^[-+][A-Za-z0-9]*[ceErR][A-Za-z]*$|^--?(command|cmd|init-command|eval|exec|execute|print|run|rsh)$`)
	splitFlag = regexp.MustCompile(`^-[A-Za-z0-9]*S|^--split-string`)
)

// isCode reports that a program before it may take the next word for a program, or for a
// part of one. It errs on that side: a pattern that admits plain names alone says that
// the word may be filled all the same.
func isCode(before []string) bool {
	for i := 0; i < len(before); i++ {
		name, rest := path.Base(before[i]), before[i+1:]
		shell := shells.MatchString(name)
		switch {
		case rejoiners.MatchString(name), i == 0 && before[i] == ".":
			return true
		case shell || interpreters.MatchString(name):
			at := scriptAt(rest, shell)
			if at == len(rest) || afterFlag(rest) {
				return true
			}
			if shell && slices.ContainsFunc(rest[:at], codeFlag.MatchString) {
				i += at + 2 // the word after the script is the name by which it goes
			}
		case wrappers.MatchString(name):
			if beforeProgram(rest) || slices.ContainsFunc(rest, splitFlag.MatchString) {
				return true
			}
		}
	}
	return false
}

func afterFlag(words []string) bool {
	return len(words) > 0 && codeFlag.MatchString(words[len(words)-1])
}

// scriptAt is where the script of an interpreter, as a text or as a file, stands among the
// words that follow it; their number, when it is not there. A word after an option may be
// the option's value: which options of a shell have one is known, and for the others it
// is not taken for a script.
func scriptAt(words []string, shell bool) int {
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "--":
			return min(i+1, len(words))
		case w == "--rcfile" || w == "--init-file" || shell && len(w) > 1 && strings.Contains("-+", w[:1]) && w[1] != '-' && strings.ContainsAny(w[len(w)-1:], "oO"):
			i++ // its value
		case strings.HasPrefix(w, "-") || strings.HasPrefix(w, "+"):
			if !shell && !codeFlag.MatchString(w) && i+1 < len(words) && words[i+1] != "--" && !strings.HasPrefix(words[i+1], "-") {
				i++ // perhaps its value
			}
		default:
			return i
		}
	}
	return len(words)
}

// beforeProgram reports that what a wrapper starts is not among the words that follow it:
// those may be options, their values, numbers and variables.
func beforeProgram(words []string) bool {
	options := true
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "--":
			options = false
		case options && strings.HasPrefix(w, "-"):
			i++ // perhaps its value
		case w == "" || unicode.IsDigit(rune(w[0])) || strings.Contains(w, "="):
		default:
			return false
		}
	}
	return true
}

// plainNames reports a pattern that admits nothing but names: letters, digits and
// _ . @ : + -, with no hyphen and no dot in front, and not nothing. No shell, and no
// language, reads more than a name in one.
func plainNames(pattern string) bool {
	re, err := syntax.Parse(`^(?:`+pattern+`)$`, syntax.Perl)
	if err != nil {
		return false
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return false
	}
	for i := range prog.Inst {
		if !plainInst(&prog.Inst[i]) {
			return false
		}
	}
	whole, err := whole(pattern)
	return err == nil && !whole.MatchString("") && !beginsWith(prog, '-', '.')
}

// plainInst reports a step that takes no rune but those of names. Ranges are of runes
// from and to; a single one may stand for its other case.
func plainInst(in *syntax.Inst) bool {
	switch in.Op {
	case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		return false
	case syntax.InstRune1, syntax.InstRune:
		if len(in.Rune) == 1 {
			return plainRune(in.Rune[0]) && (syntax.Flags(in.Arg)&syntax.FoldCase == 0 || plainCases(in.Rune[0]))
		}
		for i := 0; i+1 < len(in.Rune); i += 2 {
			if in.Rune[i+1] > unicode.MaxASCII {
				return false
			}
			for r := in.Rune[i]; r <= in.Rune[i+1]; r++ {
				if !plainRune(r) {
					return false
				}
			}
		}
	}
	return true
}

func plainRune(r rune) bool {
	return r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_.@:+-", r))
}

// plainCases reports a letter whose other cases are of ASCII: k and s have others.
func plainCases(r rune) bool {
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		if !plainRune(other) {
			return false
		}
	}
	return true
}

// beginsWith reports that a match may begin with one of the runes.
func beginsWith(prog *syntax.Prog, runes ...rune) bool {
	seen, todo := map[uint32]bool{}, []uint32{uint32(prog.Start)}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		in := &prog.Inst[at]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			todo = append(todo, in.Out, in.Arg)
		case syntax.InstCapture, syntax.InstNop, syntax.InstEmptyWidth:
			todo = append(todo, in.Out)
		case syntax.InstRune, syntax.InstRune1:
			if slices.ContainsFunc(runes, in.MatchRune) {
				return true
			}
		}
	}
	return false
}
