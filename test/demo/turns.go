//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// personal asks about files on the person's machine, fetches with a credential
// that only the broker has, and writes a file after an approval.
func (d *demo) personal(ctx context.Context) error {
	fmt.Println("\n1. a personal turn: the loop runs in the server, the files are on the laptop")
	wanted := filepath.Join(d.home, "notes/packing.txt")
	answer := make(chan error, 1)
	var said string
	go func() {
		var err error
		said, err = d.cli(ctx, d.home, "chat", "--agent", "assistant", "Make me a packing list from my notes")
		answer <- err
	}()
	var approval struct{ ID, Tool, Arguments, Digest string }
	if err := d.until(ctx, "an approval is asked for", func() error {
		select {
		case err := <-answer:
			answer <- err
			return errors.Join(errors.New("the turn ended first"), err)
		default:
		}
		var list struct {
			Approvals []struct{ ID, Tool, Arguments, Digest string }
		}
		if err := d.cliJSON(ctx, &list, "approvals"); err != nil {
			return err
		}
		if len(list.Approvals) == 0 {
			return errors.New("none yet")
		}
		approval = list.Approvals[0]
		return nil
	}); err != nil {
		return err
	}
	if _, err := os.Stat(wanted); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists before the approval (%v)", wanted, err)
	}
	say("it waits: %s wants %s", approval.Tool, approval.Arguments)
	if _, err := d.cli(ctx, d.home, "approve", approval.ID, "--digest", approval.Digest); err != nil {
		return err
	}
	d.approvals++
	say("bivouac approve %s", approval.ID)
	if err := <-answer; err != nil {
		return err
	}
	b, err := os.ReadFile(wanted)
	if err != nil {
		return fmt.Errorf("the approved file did not appear: %w", err)
	}
	say("the file appeared, %d bytes: %q", len(b), strings.SplitN(string(b), "\n", 2)[0])
	say("the agent said: %s", strings.TrimSpace(lastLine(said)))
	return d.tell(ctx)
}

// coding gives a folder with a failing test to an agent in a sandbox.
func (d *demo) coding(ctx context.Context) error {
	fmt.Println("\n2. a coding turn: the whole turn is leased to the runner, the code runs in a sandbox")
	repo := filepath.Join(d.home, "project")
	nonce := rand.Text()
	if err := makeRepo(repo, nonce); err != nil {
		return err
	}
	before, err := os.ReadFile(filepath.Join(repo, "answer.go"))
	if err != nil {
		return err
	}
	if _, err := d.cli(ctx, d.home, "run", "--agent", "coder", "--workspace", repo, "make the failing test pass"); err != nil {
		return err
	}
	if now, err := os.ReadFile(filepath.Join(repo, "answer.go")); err != nil || string(now) != string(before) {
		return fmt.Errorf("the folder changed before bivouac apply (%v)", err)
	}
	turn, err := d.newestTurn(ctx)
	if err != nil {
		return err
	}
	say("the patch is %s; the folder has not changed", turn.PatchDigest)
	if _, err := d.cli(ctx, d.home, "apply", turn.ID); err != nil {
		return err
	}
	if out, err := goTest(repo); err != nil {
		return fmt.Errorf("the test still fails after bivouac apply: %w\n%s", err, out)
	}
	say("bivouac apply %s: the test passes in the folder now", turn.ID)
	return d.tell(ctx)
}

// answerTest says what it wants only when it runs: the source has it in hex.
const answerTest = `package answer

import (
	"encoding/hex"
	"testing"
)

func TestAnswer(t *testing.T) {
	want, err := hex.DecodeString("%s")
	if err != nil {
		t.Fatal(err)
	}
	if got := Answer(); got != string(want) {
		t.Errorf("Answer() = %%q, want %%q", got, want)
	}
}
`

func makeRepo(dir, nonce string) error {
	for name, text := range map[string]string{
		"go.mod":         "module example.test/answer\n\ngo 1.26\n",
		"answer.go":      "package answer\n\n// Answer is what the test asks for.\nfunc Answer() string { return \"nothing\" }\n",
		"answer_test.go": fmt.Sprintf(answerTest, hex.EncodeToString([]byte(nonce))),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=demo", "-c", "user.email=demo@example.test", "commit", "-qm", "a failing test"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

func goTest(dir string) ([]byte, error) {
	cmd := exec.Command("go", "test", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	return cmd.CombinedOutput()
}

type turnView struct {
	ID          string
	SessionID   string `json:"session_id"`
	State       string
	PatchDigest string `json:"patch_digest"`
}

func (d *demo) newestTurn(ctx context.Context) (turnView, error) {
	var list struct{ Turns []turnView }
	if err := d.cliJSON(ctx, &list, "turns", "--limit", "1"); err != nil {
		return turnView{}, err
	}
	if len(list.Turns) == 0 {
		return turnView{}, errors.New("there is no turn")
	}
	return list.Turns[0], nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
