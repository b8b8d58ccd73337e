package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/broker/keyring"
)

const (
	// typed says that the passphrase is asked at the terminal.
	typed = "prompt"
	// credential is the name under which systemd hands the passphrase to the service:
	// LoadCredential=keyring-passphrase:/etc/bivouac/passphrase.
	credential = "keyring-passphrase"
	// longest line that a file may hold.
	longest = 4096
)

// passphrase is a flag that says where a passphrase is. No flag holds one.
type passphrase struct {
	cmd  *cobra.Command
	flag string // its name
	from string
}

func passphraseFlag(cmd *cobra.Command, name, usage string) *passphrase {
	p := &passphrase{cmd: cmd, flag: name}
	cmd.Flags().StringVar(&p.from, name, "", usage)
	return p
}

const openUsage = "file that holds the keyring's passphrase (0600), or \"prompt\" (default: systemd's credential " + credential + ", else the terminal)"

// open says the passphrase of a keyring that has one: it is asked only then.
func (p *passphrase) open() keyring.Passphrase {
	given := func() string {
		dir := os.Getenv("CREDENTIALS_DIRECTORY") // a folder's name, and no secret
		switch path := filepath.Join(dir, credential); {
		case p.from != "":
			return p.from
		case dir != "" && exists(path):
			return path
		case term.IsTerminal(int(os.Stdin.Fd())):
			return typed
		}
		return ""
	}()
	if given == "" {
		return nil
	}
	return func() (string, error) { return p.read(given, "passphrase of the keyring: ", false) }
}

// choose is a new passphrase, which is typed twice; nil: none was asked for.
func (p *passphrase) choose(what string) keyring.Passphrase {
	if p.from == "" {
		return nil
	}
	return func() (string, error) { return p.read(p.from, what+": ", true) }
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func (p *passphrase) read(from, ask string, twice bool) (string, error) {
	if from != typed {
		return fromFile(from)
	}
	first, err := p.type1(ask)
	if err != nil || !twice {
		return first, err
	}
	again, err := p.type1("the same again: ")
	if err == nil && again != first {
		err = protocol.Errorf(protocol.CodeInvalidArgument, "the two differ: nothing was changed; run the command again")
	}
	return first, err
}

// fromFile reads the first line of a file that only its owner may touch.
func fromFile(path string) (string, error) {
	if err := filemode.Secret(path); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the passphrase cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, longest+1))
	if err != nil || len(b) > longest {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%s holds no passphrase: one line of at most %d bytes", path, longest)
	}
	text, rest, _ := strings.Cut(string(b), "\n")
	text = strings.TrimSuffix(text, "\r")
	if text == "" || strings.TrimSpace(rest) != "" {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%s holds no passphrase: it must be one line, the first and only one", path)
	}
	return text, nil
}

// type1 asks at the terminal, without echo. An interrupted read leaves the terminal as
// it was.
func (p *passphrase) type1(ask string) (string, error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "there is no terminal to type a passphrase at: name a file that holds it with --%s FILE", p.flag)
	}
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	fmt.Fprint(os.Stderr, ask)
	defer fmt.Fprintln(os.Stderr)
	type answer struct {
		text []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() { // ends with the line, or with the process
		b, err := term.ReadPassword(fd)
		done <- answer{b, err}
	}()
	ctx := p.cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	select {
	case <-ctx.Done():
		_ = term.Restore(fd, before)
		return "", protocol.Errorf(protocol.CodeCancelled, "interrupted; nothing was changed")
	case a := <-done:
		return string(a.text), a.err
	}
}
