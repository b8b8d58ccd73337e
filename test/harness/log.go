package harness

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Line is one line that a part logged.
type Line struct {
	At      time.Time
	Host    string
	Level   slog.Level
	Message string
	Attrs   map[string]string
}

// Log keeps every line of every part with its virtual time.
type Log struct {
	mu    sync.Mutex // guards below
	lines []Line
	keep  int // KeepLast; zero: all
}

func newLog() *Log { return &Log{} }

// logger of one host.
func (l *Log) logger(host string) *slog.Logger { return slog.New(handler{log: l, host: host}) }

// Find returns the lines of a host with a message and all of these attributes,
// given as key, value, key, value. A value matches when it is contained.
func (l *Log) Find(host, message string, attrs ...string) (out []Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if line.Host == host && line.Message == message && line.has(attrs) {
			out = append(out, line)
		}
	}
	return out
}

// Calls of a method that a host answered, such as "Renew".
func (l *Log) Calls(host, method string, attrs ...string) []Line {
	return l.Find(host, "call", append([]string{"method", "/" + method}, attrs...)...)
}

// Text of the whole log, for searches of what must not be in it.
func (l *Log) Text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, line := range l.lines {
		fmt.Fprintln(&b, line.Message, line.Attrs)
	}
	return b.String()
}

func (line Line) has(attrs []string) bool {
	for i := 0; i+1 < len(attrs); i += 2 {
		if !strings.Contains(line.Attrs[attrs[i]], attrs[i+1]) {
			return false
		}
	}
	return true
}

// shown is how many lines a failed test prints, without those of questions.
const shown = 100

// questions that tests and loops ask all the time.
var questions = []string{"/Get", "/List", "/Watch", "/Usage", "/Describe", "/Live", "/Acknowledge"}

func (line Line) question() bool {
	return line.Attrs["code"] == "ok" && slices.ContainsFunc(questions, func(q string) bool { return strings.Contains(line.Attrs["method"], q) })
}

func (l *Log) dump(t *testing.T, began time.Time) {
	l.mu.Lock()
	told := slices.DeleteFunc(slices.Clone(l.lines), Line.question)
	l.mu.Unlock()
	for _, line := range told[max(0, len(told)-shown):] {
		var attrs []string
		for k, v := range line.Attrs {
			attrs = append(attrs, k+"="+v)
		}
		slices.Sort(attrs)
		t.Logf("%12v %-6s %s %s", line.At.Sub(began), line.Host, line.Message, strings.Join(attrs, " "))
	}
}

// handler writes into a Log. Groups are not used in this product's logs.
type handler struct {
	log   *Log
	host  string
	attrs []slog.Attr
}

func (h handler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelDebug }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	line := Line{At: time.Now(), Host: h.host, Level: r.Level, Message: r.Message, Attrs: map[string]string{}}
	keep := func(a slog.Attr) bool {
		line.Attrs[a.Key] = a.Value.String()
		return true
	}
	for _, a := range h.attrs {
		keep(a)
	}
	r.Attrs(keep)
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	h.log.lines = append(h.log.lines, line)
	h.log.trimLocked()
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(slices.Clip(h.attrs), attrs...)
	return h
}

func (h handler) WithGroup(string) slog.Handler { return h }
