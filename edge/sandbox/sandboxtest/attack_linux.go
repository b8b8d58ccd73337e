package sandboxtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/sandbox"
)

// attack is one way out, and the broken twin in which it must succeed: a hole in
// the backend, a wrong process, another way, or no sandbox at all.
type attack struct {
	name string
	way  string
	role sandbox.Role // RoleCode when zero
	args func(s *scene) []string
	// prepare changes the process of both, as one that is configured well.
	prepare func(s *scene, p *sandbox.Process)

	holes []Hole
	wrong func(s *scene, p *sandbox.Process)
	other string // way of the twin
	bare  bool
	// also are holes that this way must survive: there is a second defence.
	also [][]Hole
	root bool // only root can set it up
}

// scene is a fixture and the processes that live in one backend's group.
type scene struct {
	*fixture
	config  Config
	group   sandbox.Group
	workers []int
}

// attacks runs every way against the backend and against its twin.
func (c Config) attacks(t *testing.T) {
	f := c.newFixture(t)
	scenes := map[string]*scene{}
	stage := func(t *testing.T, holes []Hole) *scene {
		key := fmt.Sprint(holes)
		if scenes[key] == nil {
			scenes[key] = c.newScene(t, f, holes)
		}
		return scenes[key]
	}
	stage(t, nil) // before subtests, whose cleanup would end it
	for _, a := range append(codeAttacks(c), workerAttacks()...) {
		for _, holes := range append(a.also, a.holes) {
			stage(t, holes)
		}
	}
	for _, a := range append(codeAttacks(c), workerAttacks()...) {
		t.Run(a.title(), func(t *testing.T) {
			if a.root && os.Geteuid() != 0 {
				t.Skip("only root can set this up")
			}
			if a.way == compat32 {
				c.needsCompat32(t)
			}
			for _, holes := range append([][]Hole{nil}, a.also...) {
				out, r := stage(t, holes).try(t, a, false)
				if strings.Contains(out, "REACHED") || !stopped(r) {
					t.Errorf("with holes %v the attacker got out: %q, %+v", holes, out, r.exit)
				}
			}
			out, r := c.twin(t, a, stage)
			if !strings.Contains(out, "REACHED") {
				t.Errorf("the detector is blind: in the broken twin the attacker said %q (%+v, %v)", out, r.exit, r.err)
			}
		})
	}
}

// compat32 is a call through the entry for 32-bit programs.
const compat32 = "compat32"

// needsCompat32 skips where a machine has no such entry, outside of a sandbox either:
// some kernels of virtual machines end whoever takes it.
func (c Config) needsCompat32(t *testing.T) {
	t.Helper()
	if out, err := c.bare(compat32).CombinedOutput(); !strings.Contains(string(out), "REACHED") {
		said, _, _ := strings.Cut(string(out), "\n")
		t.Skipf("SKIPPED LOUDLY: this machine answers no 32-bit call: %v: %s", err, said)
	}
}

func (a attack) title() string {
	if a.role == sandbox.RoleWorker {
		return "A " + a.name
	}
	return "B " + a.name
}

// stopped reports an attacker that said it was held, or that the kernel ended.
func stopped(r result) bool {
	return r.err == nil && (strings.HasPrefix(r.out, "HELD") || r.exit.Signal == "SIGSYS")
}

// twin runs the attack where it must succeed.
func (c Config) twin(t *testing.T, a attack, stage func(*testing.T, []Hole) *scene) (string, result) {
	if !a.bare {
		return stage(t, a.holes).try(t, a, true)
	}
	var args []string
	if a.args != nil {
		args = a.args(stage(t, nil))
	}
	out, err := c.bare(append([]string{a.way}, args...)...).CombinedOutput()
	return string(out), result{err: err}
}

// newScene makes a group with a living worker in it.
func (c Config) newScene(t *testing.T, f *fixture, holes []Hole) *scene {
	b := c.New(t)
	if len(holes) > 0 {
		b = c.Broken(t, holes...)
	}
	s := &scene{fixture: f, config: c, group: group(t, b, roomy)}
	token := "worker-of-" + groupID()
	ours, theirs := socketpair(t)
	p := c.code("hold", token)
	p.Role, p.Socket = sandbox.RoleWorker, theirs
	worker := start(t, t.Context(), s.group, p)
	s.workers = withToken(t, token)
	if len(s.workers) == 0 {
		t.Fatal("the worker cannot be found on the host, so nothing would be attacked")
	}
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
		worker.wait(t)
	})
	return s
}

// try runs the attacker once in the scene.
func (s *scene) try(t *testing.T, a attack, broken bool) (string, result) {
	way, args := a.way, []string(nil)
	if broken && a.other != "" {
		way = a.other
	}
	if a.args != nil {
		args = a.args(s)
	}
	p := s.config.code(append([]string{way}, args...)...)
	if a.role == sandbox.RoleWorker {
		ours, theirs := socketpair(t)
		defer ours.Close()
		defer theirs.Close()
		p.Role, p.Socket = a.role, theirs
	} else {
		p.Workspace, p.Protected = s.path("workspace"), []string{".git", "a/b/policy", "absent"}
	}
	if a.prepare != nil {
		a.prepare(s, &p)
	}
	if broken && a.wrong != nil {
		a.wrong(s, &p)
	}
	r := run(t.Context(), s.group, p)
	return r.out + r.log, r
}

// bind shows a folder of the fixture at an inside path.
func bind(inside string, writable bool, parts ...string) func(*scene, *sandbox.Process) {
	return func(s *scene, p *sandbox.Process) {
		b := sandbox.Bind{Host: s.path(parts...), Inside: inside, Writable: writable}
		p.Binds = slices.DeleteFunc(slices.Clone(p.Binds), func(o sandbox.Bind) bool { return o.Inside == inside })
		p.Binds = append(p.Binds, b)
	}
}

// words are fixed arguments.
func words(args ...string) func(*scene) []string { return func(*scene) []string { return args } }

// processes are a victim outside and everything of the group's worker.
func processes(s *scene) []string {
	all := []string{fmt.Sprint(s.victim)}
	for _, w := range s.workers {
		all = append(all, fmt.Sprint(w))
	}
	return all
}
