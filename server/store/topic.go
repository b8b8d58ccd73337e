package store

import (
	"sync"

	"bivouac/edge/protocol"
)

// Topic of wake-ups. A wake-up is a hint after a commit: the reader scans.
type Topic string

const (
	TopicTurns     Topic = "turns"     // the queue: a turn came or ended
	TopicActions   Topic = "actions"   // an intent waits for its dispatch
	TopicApprovals Topic = "approvals" // a question or a decision
	TopicCleanups  Topic = "cleanups"  // something is to be cleaned up
	TopicAttempts  Topic = "attempts"  // placement and leases
	TopicMail      Topic = "mail"      // any mailbox; MailOf for one
	TopicEvents    Topic = "events"    // any session's events; EventsOf for one
	TopicFloors    Topic = "floors"    // the feed
)

// EventsOf is the topic of one session. A thousand streams that all woke for
// every event would read the store a thousand times an event.
func EventsOf(s protocol.SessionID) Topic { return TopicEvents + " " + Topic(s) }

// MailOf is the topic of one runner's mailbox.
func MailOf(r protocol.RunnerID) Topic { return TopicMail + " " + Topic(r) }

// topics holds who waits for which topic.
type topics struct {
	mu sync.Mutex // guards waiting
	// waiting channels hold one wake-up each: more would say nothing more.
	waiting map[Topic]map[chan struct{}]bool
}

func (t *topics) subscribe(topic Topic) (<-chan struct{}, func()) {
	wake := make(chan struct{}, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == nil {
		t.waiting = make(map[Topic]map[chan struct{}]bool)
	}
	if t.waiting[topic] == nil {
		t.waiting[topic] = make(map[chan struct{}]bool)
	}
	t.waiting[topic][wake] = true
	return wake, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.waiting[topic], wake)
		if len(t.waiting[topic]) == 0 {
			delete(t.waiting, topic) // sessions come and go
		}
	}
}

// wakeAll tells everybody, after a time in which wake-ups may have been missed.
func (t *topics) wakeAll() {
	t.mu.Lock()
	all := make(map[Topic]bool, len(t.waiting))
	for topic := range t.waiting {
		all[topic] = true
	}
	t.mu.Unlock()
	t.wake(all)
}

// wake tells every subscriber of the touched topics, without waiting for any.
func (t *topics) wake(touched map[Topic]bool) {
	if len(touched) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic := range touched {
		for c := range t.waiting[topic] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}
