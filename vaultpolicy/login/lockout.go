package login

import (
	"os"
	"time"

	"bivouac/vaultpolicy/client"
)

// waits after a secret id that was refused, the last of them for good. Both servers lock
// a role id out after five refusals, each within 15 minutes of the one before, and then
// refuse the right secret id too: three of ours leave some to whoever looks what is wrong,
// and the last wait is longer than what they count, and than a lockout.
var waits = [...]time.Duration{30 * time.Second, 2 * time.Minute, 16 * time.Minute}

// refusal is what the server said of a login that counts against a lockout. It is the
// answer to everybody until its time is over, or the file with the secret is another.
// Another file is tried at once, and counts on: it may be as wrong.
type refusal struct {
	err   error
	times int
	file  stamp
	until time.Time
}

// stamp tells whether a file was written since, also with what was in it.
type stamp struct {
	at   time.Time
	size int64
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{info.ModTime(), info.Size()}
}

// stands is the refusal where it is not to be tried again yet.
func (r *refusal) stands(file stamp) error {
	if r.err == nil || r.file != file || !time.Now().Before(r.until) {
		return nil
	}
	return r.err
}

// note a refusal of what was in a file.
func (r *refusal) note(err error, file stamp) {
	r.until = time.Now().Add(waits[min(r.times, len(waits)-1)])
	r.err, r.file = err, file
	r.times++
}

// counted reports a failed login that the server may count against a lockout.
func (a Auth) counted(err error) bool {
	k := client.KindOf(err)
	return a.Method == AppRole && (k == client.Refused || k == client.Invalid)
}

// Unlock is what lets a right secret id in again that is refused after wrong ones. Empty:
// the method knows no lockout.
func (a Auth) Unlock() string {
	if a.Method != AppRole {
		return ""
	}
	return "vault write -f sys/locked-users/ACCESSOR/unlock/ROLE_ID  (ACCESSOR: of " + a.Mount + "/, from vault auth list; ROLE_ID: vault read -field=role_id auth/" + a.Mount + "/role/" + a.Role + "/role-id)"
}
