// Package secretscan looks for secrets where none may be: files, databases, logs,
// journals, artifacts, events, and what every executed program was given. A hit is
// the secret itself or one of its usual encodings (INV-17).
//
// It tells where a hit is and never what the secret is.
package secretscan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Secret is what is looked for, and how it is called in a report.
type Secret struct {
	Name  string
	Value string
}

// Hit is one place that holds a secret.
type Hit struct {
	Secret string
	Form   string // "plain", "base64", "url" or "hex"
	Where  string
}

func (h Hit) String() string { return fmt.Sprintf("%s (%s) in %s", h.Secret, h.Form, h.Where) }

// Scanner knows what to look for.
type Scanner struct{ needles []needle }

type needle struct {
	secret, form string
	text         []byte
}

// New prepares every form of every secret.
func New(secrets ...Secret) *Scanner {
	s := &Scanner{}
	for _, sec := range secrets {
		v := []byte(sec.Value)
		s.add(sec.Name, "plain", v)
		if q := url.QueryEscape(sec.Value); q != sec.Value {
			s.add(sec.Name, "url", []byte(q))
		}
		s.add(sec.Name, "hex", []byte(hex.EncodeToString(v)))
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for shift := range 3 {
				s.add(sec.Name, "base64", aligned(enc, v, shift))
			}
		}
	}
	return s
}

// aligned is the part of the encoding of anything that has v at an offset of
// shift bytes (modulo three) which does not depend on its neighbours.
func aligned(enc *base64.Encoding, v []byte, shift int) []byte {
	padded := append(make([]byte, shift), v...)
	out := []byte(enc.EncodeToString(padded[:len(padded)-len(padded)%3]))
	return out[(shift*4+2)/3:]
}

func (s *Scanner) add(secret, form string, text []byte) {
	if len(text) < 8 || slices.ContainsFunc(s.needles, func(n needle) bool { return bytes.Equal(n.text, text) }) {
		return
	}
	s.needles = append(s.needles, needle{secret, form, text})
}

// Bytes scans one text.
func (s *Scanner) Bytes(where string, b []byte) []Hit {
	var hits []Hit
	for _, n := range s.needles {
		if bytes.Contains(b, n.text) {
			hits = append(hits, Hit{n.secret, n.form, where})
		}
	}
	return hits
}

// Files scans every regular file below root, names included.
func (s *Scanner) Files(root string) ([]Hit, error) {
	var hits []Hit
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hits = append(hits, s.Bytes("the name of "+path, []byte(d.Name()))...)
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		hits = append(hits, s.Bytes(path, b)...)
		return nil
	})
	return hits, err
}

// Executions scans the records of package exectrace.
func (s *Scanner) Executions(file string) ([]Hit, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var hits []Hit
	for line := range strings.Lines(string(b)) {
		var r struct {
			PID       int
			Argv, Env []string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, word := range r.Argv {
			hits = append(hits, s.Bytes(fmt.Sprintf("an argument of process %d", r.PID), []byte(word))...)
		}
		for _, word := range r.Env {
			hits = append(hits, s.Bytes(fmt.Sprintf("the environment of process %d", r.PID), []byte(word))...)
		}
	}
	return hits, nil
}
