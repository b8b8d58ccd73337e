package session

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func pending() Approval {
	return Approval{ID: "apr_x", State: ApprovalPending, Digest: "sha256:a", ExpiresAt: now.Add(time.Minute)}
}

// TestApprovalOnce: an approval is consumed once, by exactly the digest it
// names, before it expires. INV-6.
func TestApprovalOnce(t *testing.T) {
	if _, err := pending().Decide(true, "sha256:b", "prn_x", "", now); protocol.CodeOf(err) != protocol.CodeConflict {
		t.Errorf("a decision on another digest: %v", err)
	}
	if _, err := pending().Consume("act_1", "sha256:a", now); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("consumed before it was approved: %v", err)
	}
	a, err := pending().Decide(true, "sha256:a", "prn_x", "fine", now)
	if err != nil || a.State != ApprovalApproved || a.DecidedBy != "prn_x" || a.DecidedAt != now || a.Reason != "fine" {
		t.Fatalf("approved: %+v, %v", a, err)
	}
	if kept, err := a.Consume("act_1", "sha256:b", now); protocol.CodeOf(err) != protocol.CodeConflict || kept.ConsumedBy != "" {
		t.Errorf("consumed by another digest: %+v, %v", kept, err)
	}
	used, err := a.Consume("act_1", "sha256:a", now)
	if err != nil || used.ConsumedBy != "act_1" || used.ConsumedAt != now {
		t.Fatalf("consumed: %+v, %v", used, err)
	}
	if again, err := used.Consume("act_2", "sha256:a", now); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || again.ConsumedBy != "act_1" {
		t.Errorf("consumed twice: %+v, %v", again, err)
	}
}

func TestApprovalExpiry(t *testing.T) {
	late := now.Add(time.Minute)
	if _, err := pending().Decide(true, "sha256:a", "prn_x", "", late); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("approved at its expiry: %v", err)
	}
	if a, err := pending().Decide(false, "sha256:a", "prn_x", "", late); err != nil || a.State != ApprovalDenied {
		t.Errorf("denied at its expiry: %+v, %v", a, err)
	}
	a, err := pending().Decide(true, "sha256:a", "prn_x", "", late.Add(-time.Nanosecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Consume("act_1", "sha256:a", late); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("consumed at its expiry: %v", err)
	}
}

// TestSubject: every part is bound. A change of any one is another digest.
func TestSubject(t *testing.T) {
	base := Subject{Principal: "prn_1", Tool: "files.write", Destination: "run_1", ArgumentsDigest: "sha256:1",
		DataBoundary: "personal", PolicyDigest: "sha256:2", PreImageDigest: "sha256:3", ExpiresAt: now}
	if got := base.Digest(); len(got) != len("sha256:")+64 {
		t.Fatalf("digest %q", got)
	}
	if got, pinned := base.Digest(), "sha256:0202b5010a08701f5d71a1479d2af9d12ce8da994ba14d1eaa0cb211df6b8a6c"; got != pinned {
		t.Errorf("the digest of the same subject changed: %s, was %s", got, pinned)
	}
	seen := map[string]string{base.Digest(): "base"}
	for name, change := range map[string]func(*Subject){
		"principal":     func(s *Subject) { s.Principal = "prn_2" },
		"tool":          func(s *Subject) { s.Tool = "files.read" },
		"destination":   func(s *Subject) { s.Destination = "run_2" },
		"arguments":     func(s *Subject) { s.ArgumentsDigest = "sha256:9" },
		"data boundary": func(s *Subject) { s.DataBoundary = "work" },
		"policy":        func(s *Subject) { s.PolicyDigest = "sha256:9" },
		"pre-image":     func(s *Subject) { s.PreImageDigest = "" },
		"expiry":        func(s *Subject) { s.ExpiresAt = now.Add(time.Microsecond) },
	} {
		s := base
		change(&s)
		if other, same := seen[s.Digest()]; same {
			t.Errorf("a change of %s has the digest of %s", name, other)
		}
		seen[s.Digest()] = name
	}
	elsewhere := base
	elsewhere.ExpiresAt = now.In(time.FixedZone("x", 3600)).Add(300 * time.Nanosecond)
	if elsewhere.Digest() != base.Digest() {
		t.Error("the store's precision or a time zone changes the digest")
	}
}

func TestActionSubject(t *testing.T) {
	a := Action{Principal: "prn_1", Tool: "files.write", Destination: "run_1", ArgumentsDigest: "sha256:1", PreImageDigest: "sha256:3"}
	want := Subject{Principal: "prn_1", Tool: "files.write", Destination: "run_1", ArgumentsDigest: "sha256:1",
		DataBoundary: "personal", PolicyDigest: "sha256:2", PreImageDigest: "sha256:3", ExpiresAt: now}
	if got := a.Subject("personal", "sha256:2", now); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
