package edge

import (
	"fmt"
	"sync"
	"time"
)

// problems keeps the newest error of each part, for status.
type problems struct {
	mu     sync.Mutex // guards errors
	errors map[string]problem
}

type problem struct {
	err error
	at  time.Time
}

func (p *problems) note(part string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.errors == nil {
		p.errors = map[string]problem{}
	}
	if err == nil {
		delete(p.errors, part)
		return
	}
	p.errors[part] = problem{err, time.Now()}
}

// text of the newest error of one part; empty without one.
func (p *problems) text(part string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one, ok := p.errors[part]; ok {
		return one.err.Error()
	}
	return ""
}

func (p *problems) newest() (out problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for part, one := range p.errors {
		if one.at.After(out.at) {
			out = problem{fmt.Errorf("%s: %w", part, one.err), one.at}
		}
	}
	return out
}
