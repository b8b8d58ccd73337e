//go:build linux

package jobs_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// volumes are a node's with the folder of runners.
func volumes(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"bivouac-edge": t.TempDir()}
}

// runners is the job of runners as far as nodes are chosen by it.
func runners(command string, change func(*api.Job)) *api.Job {
	job := holder(command)
	job.TaskGroups[0].Volumes = map[string]*api.VolumeRequest{"state": {Name: "state", Type: "host", Source: "bivouac-edge"}}
	change(job)
	return job
}

// A runner that is not there is explained by what keeps Nomad from running it, and no
// longer than that is so.
func TestRoster(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		w, kept := liveWatch(t, s)

		var node *nomadserver.Client
		begin := func(c nomadserver.ClientConfig) {
			if node != nil {
				node.Remove(t)
			}
			c.Name, c.Pool = "alpha", "agents"
			node = s.AddClient(t, c)
		}
		plain := func(*api.Job) {}
		causes := map[string]func(){
			"no job":    func() {},
			"no node":   func() { register(t, s, runners("/bin/sleep", plain)) },
			"no volume": func() { begin(nomadserver.ClientConfig{}) },
			"no driver": func() { begin(nomadserver.ClientConfig{Volumes: volumes(t), Bare: true}) },
			"no room": func() {
				begin(nomadserver.ClientConfig{Volumes: volumes(t)})
				register(t, s, runners("/bin/sleep", func(j *api.Job) { j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(100_000_000) }))
			},
			"no match": func() {
				register(t, s, runners("/bin/sleep", func(j *api.Job) {
					j.Constraints = []*api.Constraint{api.NewConstraint("${attr.kernel.name}", "=", "plan9")}
				}))
			},
			"not eligible":     func() { eligible(t, s, node, false) },
			"begins and fails": func() { eligible(t, s, node, true); register(t, s, runners("/bin/no-such-program", plain)) },
			"not enrolled":     func() { register(t, s, runners("/bin/sleep", plain)) },
			"job stopped": func() {
				if _, _, err := s.Root().Jobs().Deregister("bivouac-runner", false, &api.WriteOptions{Namespace: "agents"}); err != nil {
					t.Fatal(err)
				}
			},
		}
		for _, state := range unplaced {
			causes[state.name]()
			until(t, state.name, func() error {
				if bad := saidOf(w.Absent(tenant, nil, "ops"), state.says, state.remedy); bad != "" {
					return errors.New(bad)
				}
				return nil
			})
			kept.save(t, "roster "+state.name, s.Folder())
		}
	})
}
