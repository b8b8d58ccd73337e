package store

import "sync"

// Topic of wake-ups. A wake-up is a hint after a commit: the reader scans.
type Topic string

const (
	TopicTurns    Topic = "turns"    // queue, deadlines, approvals
	TopicAttempts Topic = "attempts" // placement and leases
	TopicMail     Topic = "mail"     // mailboxes
	TopicEvents   Topic = "events"   // session streams
	TopicFloors   Topic = "floors"   // the feed
)

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
	}
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
