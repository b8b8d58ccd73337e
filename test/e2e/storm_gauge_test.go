//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/test/e2e/stack"
)

// ages at which lives of processes are compared, each reached by a factor of two:
// a process holds more when it is older, so only equal ages say anything. A younger
// one is still starting: it tries its sandbox, and takes up what it finds.
var ages = []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}

// held is what one life of a process held at one age: the least that was seen
// there, since what is only in use for a moment is no growth.
type held struct {
	memory      int64
	descriptors int
}

// life is one process from a start to its end.
type life struct {
	role string
	at   time.Duration // from the storm's begin to its start
	held map[int]held  // by the place of the age in ages
}

// stormGauge watches every process of a stack.
type stormGauge struct {
	begun time.Time

	mu    sync.Mutex // guards lives
	lives map[string]*life
}

func newStormGauge() *stormGauge { return &stormGauge{begun: time.Now(), lives: map[string]*life{}} }

// look measures all that runs now.
func (g *stormGauge) look(running []stack.Running) {
	for _, r := range running {
		if r.Role == "" {
			continue
		}
		if r, ok := r.Measured(); ok {
			g.note(r, time.Since(g.begun)-r.Age)
		}
	}
}

func (g *stormGauge) note(r stack.Running, start time.Duration) {
	age := -1
	for i, from := range ages {
		if r.Age >= from {
			age = i
		}
	}
	if age < 0 || r.Memory == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := fmt.Sprint(r.PID, " ", r.Started)
	l := g.lives[key]
	if l == nil {
		l = &life{role: r.Role, at: start, held: map[int]held{}}
		g.lives[key] = l
	}
	least, seen := l.held[age]
	if !seen {
		least = held{r.Memory, r.Descriptors}
	}
	l.held[age] = held{min(least.memory, r.Memory), min(least.descriptors, r.Descriptors)}
}

// What a role may hold more in the last third than in the first: memory is in steps
// of a garbage collection, descriptors follow what is under way.
const (
	memorySlack     = 16 << 20
	descriptorSlack = 16
	fewestLives     = 4 // of a role at an age in each third, to be compared
)

// comparison is one role at one age, in the first third and in the last: the lower
// quartile of its lives. What leaks from life to life raises all of them; how much is
// under way raises some.
type comparison struct {
	role        string
	age         time.Duration
	lives       [2]int
	memory      [2]int64
	descriptors [2]int
}

func (c comparison) String() string {
	return fmt.Sprintf("%-9s aged %5s: %5.1f → %5.1f MiB, %3d → %3d descriptors (lower quartile of %d and %d lives)", c.role, c.age,
		float64(c.memory[0])/(1<<20), float64(c.memory[1])/(1<<20), c.descriptors[0], c.descriptors[1], c.lives[0], c.lives[1])
}

// grew says that what the role holds is not flat: at an equal age even its lean lives
// hold more than they did, by more than the slack. A single life proves nothing.
func (c comparison) grew() bool {
	return c.memory[1] > c.memory[0]+memorySlack || c.descriptors[1] > c.descriptors[0]+descriptorSlack
}

// compared sets the lives that began in the first third of a storm beside those that
// began in its last.
func (g *stormGauge) compared(whole time.Duration) (out []comparison) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, role := range []string{"server", "broker", "edge", "supervise", "worker"} {
		for i, age := range ages {
			var memory [2][]int64
			var descriptors [2][]int
			for _, l := range g.lives {
				h, seen := l.held[i]
				third := 0
				if l.at > whole*2/3 {
					third = 1
				}
				if l.role == role && seen && (l.at < whole/3 || third == 1) {
					memory[third], descriptors[third] = append(memory[third], h.memory), append(descriptors[third], h.descriptors)
				}
			}
			c := comparison{role: role, age: age, lives: [2]int{len(memory[0]), len(memory[1])}}
			if min(c.lives[0], c.lives[1]) < fewestLives {
				continue
			}
			for third := range 2 {
				slices.Sort(memory[third])
				slices.Sort(descriptors[third])
				c.memory[third], c.descriptors[third] = memory[third][len(memory[third])/4], descriptors[third][len(descriptors[third])/4]
			}
			out = append(out, c)
		}
	}
	return out
}

// Growth over the lives of a role is seen at an equal age; an old process that holds
// more than a young one, and one life that held much, are not growth.
func TestGrowthOverLivesIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		of    func(n int, age time.Duration) held // what the n-th of 30 lives holds
		wants string
	}{
		"steady":         {func(n int, age time.Duration) held { return held{int64(30+n%5+int(age/time.Second)) << 20, 20 + n%3} }, ""},
		"some hold much": {func(n int, _ time.Duration) held { return held{int64(30+100*(n/15*n%2)) << 20, 20 + 100*(n/15*n%2)} }, ""},
		"memory":         {func(n int, _ time.Duration) held { return held{int64(30+n) << 20, 20} }, "MiB"},
		"descriptors":    {func(n int, _ time.Duration) held { return held{30 << 20, 20 + n} }, "descriptors"},
		"memory of the old": {func(n int, age time.Duration) held {
			if age < 8*time.Second {
				return held{30 << 20, 20}
			}
			return held{int64(30+n) << 20, 20}
		}, "aged    8s"},
	} {
		g := newStormGauge()
		for n := range 30 {
			for _, age := range ages[:3] {
				h := c.of(n, age)
				g.note(stack.Running{PID: n, Role: "server", Age: age, Memory: h.memory, Descriptors: h.descriptors}, time.Duration(n)*time.Second)
			}
		}
		var grown []string
		for _, one := range g.compared(30 * time.Second) {
			if one.grew() {
				grown = append(grown, one.String())
			}
		}
		if found := strings.Join(grown, "; "); c.wants == "" && found != "" || !strings.Contains(found, c.wants) {
			t.Errorf("%s: wants %q, found %q", name, c.wants, found)
		}
	}
}
