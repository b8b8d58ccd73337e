package supervise

import (
	"bufio"
	"fmt"
	"strings"

	"bivouac/edge/protocol/redact"
)

// logLines passes what a process says to the log, line by line, bounded. The process
// worked on what a person gave it, so what looks like a secret is taken out.
type logLines struct {
	log  func(string)
	part []byte
	said int
	key  bool // within a private key of several lines
}

// Bounds of what one process says.
const (
	maxLogged  = 100
	maxLogLine = 4096
)

func (l *logLines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		advance, line, _ := bufio.ScanLines(l.part, len(l.part) > maxLogLine)
		if advance == 0 {
			return len(p), nil
		}
		l.say(line)
		l.part = l.part[advance:]
	}
}

// flush ends it: the last line, and how many were not passed on.
func (l *logLines) flush() {
	if len(l.part) > 0 {
		l.say(l.part)
		l.part = nil
	}
	if more := l.said - maxLogged; more > 0 {
		l.log(fmt.Sprintf("%d more lines are left out", more))
	}
}

func (l *logLines) say(line []byte) {
	text := string(line)
	begins, ends := strings.Contains(text, "-----BEGIN "), strings.Contains(text, "-----END ")
	if l.key && !ends {
		return // it was said where it began
	}
	inside := l.key
	l.key = begins && !ends && strings.Contains(text, "PRIVATE KEY")
	if l.said++; l.said > maxLogged || inside {
		return
	}
	shown, _ := redact.Text(text)
	l.log(shown)
}
