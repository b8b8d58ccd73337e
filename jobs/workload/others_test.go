package workload_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/jobs/jobstest"
	"bivouac/jobs/workload"
)

// slow answers when it is let go, unless who asked has gone.
type slow struct {
	*jobstest.Signer
	hold chan struct{}
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-s.hold:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return s.Signer.RoundTrip(r)
}

// Whoever asks with an invented key and hangs up costs nobody else anything: the keys are
// everybody's.
func TestWhoHangsUpCostsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slow{jobstest.NewSigner(t), make(chan struct{})}
		j := workload.NewJudge(workload.NewKeys("https://nomad.example.org:4646", func() (*http.Client, error) {
			return &http.Client{Transport: s}, nil
		}), []workload.Rule{rule})
		good := s.Sign(t, "one", jobstest.Claims(node), nil)
		ctx, hangUp := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _, _ = j.Judge(ctx, good) // anything with a header and a key id
		}()
		synctest.Wait()
		hangUp()
		synctest.Wait()
		close(s.hold) // Nomad answers from here on
		<-gone
		if _, _, err := j.Judge(t.Context(), good); err != nil {
			t.Errorf("a good identity, after another machine hung up: %s %v", protocol.CodeOf(err), err)
		}
	})
}

// Two tasks of one job may belong to two tenants, as server.hcl admits it; they are two
// machines.
func TestTwoTasksAreTwoMachines(t *testing.T) {
	s := jobstest.NewSigner(t)
	other := rule
	other.Name, other.Task, other.Tenant, other.Principal = "theirs", "other", "ten_01jdv3k8x0q6v9w2m4t7y5z1ac", "them"
	j := judge(s, rule, other)
	r1, one, err1 := j.Judge(t.Context(), s.Sign(t, "one", jobstest.Claims(node), nil))
	r2, two, err2 := j.Judge(t.Context(), s.Sign(t, "one", jobstest.Claims(node), map[string]any{"nomad_task": "other"}))
	if err1 != nil || err2 != nil || r1.Tenant == r2.Tenant {
		t.Fatal(err1, err2)
	}
	if one.Machine() == two.Machine() {
		t.Errorf("the machines of two tenants hold one workload, %s: the second is refused, and told the first one's id and name", one.Machine())
	}
}
