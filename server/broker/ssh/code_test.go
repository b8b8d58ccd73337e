package ssh

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A word that a program reads as code, or as the program that it starts, is refused when
// the file is read. With a pattern that admits plain names alone it is admitted, and with
// a wider one it is not.
func TestCodeIsNotFilled(t *testing.T) {
	for _, run := range []string{
		"bash -c {x}", "bash -ceu {x}", "bash -euc {x}", "sh -c -- {x}", "bash -c -u {x}", "bash -c -o pipefail {x}", "bash -co pipefail {x}", "bash +o posix -c {x}", "bash {x}", "bash -eu {x}", "fish --command {x}",
		"su app -c {x}", "su - app -c restart-{x}", "runuser -u app -- {x}", "runuser app -c {x}", "sg wheel -c {x}",
		"env -S {x}", "env -iS {x}", "env -u A --split-string={x}", "env {x}", "env A=1 {x}", "sudo {x}", "sudo -u app {x}", "sudo -u app -- {x}", "sudo -u app sh -ec {x}", "timeout -k 5 30 {x}", "nohup {x}", "nice -n 5 {x}", "env -- A=1 {x}", "timeout -- 5 {x}", "chroot /srv {x}", "capsh -- -c {x}", "gosu app {x}", ". {x}",
		"ssh inner systemctl restart {x}", "awk {x}", "/usr/bin/gawk -f lib -- {x}", "sed -e {x}", "sed -n {x} file", "xargs {x}", "watch uptime {x}", "parallel {x}", "script -c {x}", "flock /run/l -c {x}", "eval {x}", "make {x}", "git -c {x} status", "find . -exec {x} ;", "sqlite3 db {x}", "busybox ash -c {x}",
		"python3 -c {x}", "python3 -Ic {x}", "python3 -W ignore {x}", "python3 -m {x}", "perl -ne {x}", "perl -e 1 -e {x}", "perl -E {x}", "ruby -r {x}", "node --eval {x}", "node --print {x}", "php -r {x}", "lua -e {x}", "python3 {x}",
	} {
		words := strings.Fields(run)
		if (Command{Run: words}).Check() == nil {
			t.Errorf("%q was admitted", run)
		}
		for pattern, plain := range map[string]bool{
			"[a-z0-9][a-z0-9_.-]*": true, "web|db": true, "(?i)web": true, "(?i)disk": false, "[a-z-]+": false, "[a-z0-9.]+": false, "[a-z]*": false, "[a-z ]+": false, ".+": false, `\S+`: false, "[^-]+": false, "a;id": false, "a/b": false, "(a|-x)": false, "web$": true, "web[0-9]{1,3}": true,
		} {
			if p := (Command{Run: words, Patterns: map[string]string{"x": pattern}}).Check(); (len(p) == 0) != plain {
				t.Errorf("%q with the pattern %q: %v", run, pattern, p)
			}
		}
	}
	for _, run := range []string{
		`sh -c CODE sh {x}`, `bash -euo pipefail -c CODE name {x}`, `bash -c -- CODE bash {x}`, "bash -eu /opt/deploy.sh {x}", "bash /opt/deploy.sh --to {x}", "python3 /opt/deploy.py {x}", "python3 -u -- /opt/deploy.py {x}", "perl -ne CODE {x}",
		"sudo systemctl restart {x}", "sudo -n -- systemctl restart {x}", "env A=1 LANG=C df {x}", "timeout -k 5 30 systemctl restart {x}", "ping -c {x} host", "ls . {x}", "env -- A=1 df {x}", "systemctl restart {x}", "once run {idempotency_key} systemctl restart {x}", "su app -c {idempotency_key}",
	} {
		if p := (Command{Run: strings.Fields(run)}).Check(); len(p) > 0 {
			t.Errorf("%q: %v", run, p)
		}
	}
}

// What is refused would have run: the shell itself is asked, and the twin that is told to
// the operator does nothing but show its argument.
func TestCodeWouldRun(t *testing.T) {
	for _, run := range [][]string{{"sh", "-c", "{x}"}, {"sh", "-ceu", "{x}"}, {"env", "-S", "{x}"}, {"eval", "{x}"}, {"sh", "-c", `printf %s "$1" >/dev/null`, "sh", "{x}"}} {
		c, mark := Command{Run: run}, filepath.Join(t.TempDir(), "mark")
		line, err := c.line(false, []byte(`{"x":`+jsonOf(t, "touch "+mark)+`}`), "key")
		if err != nil {
			t.Fatal(err)
		}
		_ = exec.Command("sh", "-c", line).Run() // that it ran is seen by its mark
		_, err = os.Stat(mark)
		if admitted := len(c.Check()) == 0; admitted == (err == nil) {
			t.Errorf("%q: admitted %t, ran %t", run, admitted, err == nil)
		}
	}
}
