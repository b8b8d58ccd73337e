package budget

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// Caps of the broker's own file: millionths of a US dollar in any sixty minutes.
// Zero means nothing may be spent; Unlimited switches a cap off in words.
type Caps struct {
	PerHour       int64            // all tenants together
	PerTenantHour map[string]int64 // by tenant name; "*" for those not named
}

// Unlimited is no cap.
const Unlimited = -1

// Spend keeps the last sixty minutes of every tenant, over restarts too: a
// restart must not refill a cap.
type Spend struct {
	path string
	now  func() time.Time

	mu      sync.Mutex // guards below
	caps    Caps
	minutes map[string]map[int64]int64
	held    map[string]int64
}

// NewSpend reads what an earlier start has spent. An empty path keeps it in memory.
func NewSpend(caps Caps, path string, now func() time.Time) (*Spend, error) {
	s := &Spend{caps: caps, path: path, now: now, minutes: map[string]map[int64]int64{}, held: map[string]int64{}}
	if path == "" {
		return s, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.minutes)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss,
			"%s cannot be read: %w; remove it to go on, the caps of this hour begin anew then", path, err)
	}
	return s, nil
}

// SetCaps replaces the caps. What was spent and what is held stays.
func (s *Spend) SetCaps(c Caps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caps = c
}

// SpendHold is a reservation against the caps.
type SpendHold struct {
	spend  *Spend
	tenant string
	amount int64
	once   sync.Once
}

// Reserve takes amount from the caps of a tenant before a call.
func (s *Spend) Reserve(tenant string, amount int64) (*SpendHold, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked()
	limit, named := s.caps.PerTenantHour[tenant]
	if !named {
		if limit, named = s.caps.PerTenantHour["*"]; !named {
			limit = Unlimited
		}
	}
	if limit != Unlimited && s.sumLocked(tenant)+amount > limit {
		return nil, capped("tenant "+tenant, limit)
	}
	if s.caps.PerHour != Unlimited && s.sumLocked("")+amount > s.caps.PerHour {
		return nil, capped("all tenants", s.caps.PerHour)
	}
	s.held[tenant] += amount
	return &SpendHold{spend: s, tenant: tenant, amount: amount}, nil
}

func capped(whom string, limit int64) error {
	e := protocol.Errorf(protocol.CodeRateLimited,
		"the broker's own cap of %d micro-USD an hour for %s is reached: wait, or raise caps in broker.hcl", limit, whom)
	e.RetryAfter = time.Minute
	return e
}

// Settle replaces the reservation by the real cost.
func (h *SpendHold) Settle(cost int64) error {
	var err error
	h.once.Do(func() {
		s := h.spend
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held[h.tenant] -= h.amount
		if cost == 0 {
			return
		}
		if s.minutes[h.tenant] == nil {
			s.minutes[h.tenant] = map[int64]int64{}
		}
		s.minutes[h.tenant][s.now().Unix()/60] += cost
		err = s.saveLocked()
	})
	return err
}

// sumLocked is held plus spent of a tenant, or of all for the empty name.
func (s *Spend) sumLocked(tenant string) (sum int64) {
	for name, minutes := range s.minutes {
		if tenant == "" || name == tenant {
			for _, v := range minutes {
				sum += v
			}
		}
	}
	for name, v := range s.held {
		if tenant == "" || name == tenant {
			sum += v
		}
	}
	return sum
}

func (s *Spend) forgetLocked() {
	oldest := s.now().Unix()/60 - 60
	for name, minutes := range s.minutes {
		for m := range minutes {
			if m < oldest {
				delete(minutes, m)
			}
		}
		if len(minutes) == 0 {
			delete(s.minutes, name)
		}
	}
}

// saveLocked survives the death of the process; after a power cut a minute may
// be missing, which a cap can bear.
func (s *Spend) saveLocked() error {
	if s.path == "" {
		return nil
	}
	b, err := json.Marshal(s.minutes)
	if err != nil {
		return err
	}
	return durable.Swap(s.path, b, 0o600)
}
