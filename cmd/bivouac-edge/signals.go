package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signals end a command: they end its context. A command that becomes another program
// gives them back before, so that none is lost between the two.
type signals struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	came   chan os.Signal
	back   chan struct{}  // closed when they are given back
	waits  sync.WaitGroup // for one of them
}

type signalsKey struct{}

// untilSignal takes the signals with which people and schedulers end a process.
func untilSignal(parent context.Context) *signals {
	s := &signals{came: make(chan os.Signal, 1), back: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	s.ctx = context.WithValue(s.ctx, signalsKey{}, s)
	signal.Notify(s.came, os.Interrupt, syscall.SIGTERM)
	s.waits.Go(s.wait)
	return s
}

func (s *signals) wait() {
	select {
	case one := <-s.came:
		s.end(one)
	case <-s.back:
	}
}

func (s *signals) end(one os.Signal) { s.cancel(fmt.Errorf("%s signal received", one)) }

// giveBack has signals do from now on what the system does with them: they end the
// process. It reports whether none came before. It is called once.
func (s *signals) giveBack() (none bool) {
	signal.Stop(s.came)
	close(s.back)
	s.waits.Wait()
	select {
	case one := <-s.came:
		s.end(one)
	default:
	}
	return s.ctx.Err() == nil
}

// signalsOf a command; nil for one that runs without.
func signalsOf(ctx context.Context) *signals {
	s, _ := ctx.Value(signalsKey{}).(*signals)
	return s
}
