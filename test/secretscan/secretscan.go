// Package secretscan looks for secrets where none may be: files, databases, logs,
// journals, artifacts, events, and what every executed program was given. A hit is
// the secret itself or one of its usual encodings (INV-17).
//
// It tells where a hit is and never what the secret is.
package secretscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
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
	Form   string // "plain", "base64", "url", "hex", "json", "html" or "utf-16"
	Where  string
}

func (h Hit) String() string { return fmt.Sprintf("%s (%s) in %s", h.Secret, h.Form, h.Where) }

// Scanner knows what to look for.
type Scanner struct {
	needles []needle
	starts  map[uint64][]int // needles by how they begin
	first   [1 << 16]bool    // by their first two bytes: most of a text begins none
}

type needle struct {
	secret, form string
	text         []byte
}

// start is how much of a needle finds it; shorter ones are not looked for.
const start = 8

// New prepares every form of every secret.
func New(secrets ...Secret) *Scanner {
	s := &Scanner{starts: map[uint64][]int{}}
	known := map[string]bool{}
	for _, sec := range secrets {
		for _, f := range forms(sec.Value) {
			if text := f.text; len(text) >= start && !known[text] {
				known[text] = true
				at := binary.LittleEndian.Uint64([]byte(text))
				s.starts[at] = append(s.starts[at], len(s.needles))
				s.first[uint16(at)] = true
				s.needles = append(s.needles, needle{sec.Name, f.name, []byte(text)})
			}
		}
	}
	return s
}

// Bytes scans one text.
func (s *Scanner) Bytes(where string, b []byte) (hits []Hit) {
	for i := 0; i+start <= len(b); i++ {
		if !s.first[binary.LittleEndian.Uint16(b[i:])] {
			continue
		}
		for _, n := range s.starts[binary.LittleEndian.Uint64(b[i:])] {
			h := Hit{s.needles[n].secret, s.needles[n].form, where}
			if bytes.HasPrefix(b[i:], s.needles[n].text) && !slices.Contains(hits, h) {
				hits = append(hits, h)
			}
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
