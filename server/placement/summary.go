package placement

import "strings"

// NoRunner is the summary when the principal has no runner at all, and AddRunner
// the command that changes that.
const (
	NoRunner  = "you have no machine that takes turns"
	AddRunner = "bivouac edge invite"
)

// Summary says in one sentence why nothing takes the attempt; it is empty when
// something does.
func (r Ranking) Summary() string {
	if len(r.Candidates) > 0 {
		return ""
	}
	if len(r.Verdicts) == 0 {
		return NoRunner
	}
	const most = 4
	var parts []string
	for i, v := range r.Verdicts {
		if i == most {
			parts = append(parts, "and so on")
			break
		}
		var texts []string
		for _, reason := range v.Reasons {
			texts = append(texts, reason.Text)
		}
		parts = append(parts, v.Name+": "+strings.Join(texts, ", "))
	}
	return strings.Join(parts, "; ")
}

// Remedies are what would change it, each once, in order.
func (r Ranking) Remedies() []string {
	if len(r.Verdicts) == 0 {
		return []string{AddRunner}
	}
	seen := map[string]bool{}
	var out []string
	for _, v := range r.Verdicts {
		for _, reason := range v.Reasons {
			text := v.Name + ": " + reason.Remedy
			if reason.Remedy != "" && !seen[text] {
				seen[text] = true
				out = append(out, text)
			}
		}
	}
	return out
}
