//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tenantCrossing is one thing that its owner may do, as a command, as a call of
// the API, or both. {name} stands for a thing of the owner. Rows are in the order
// in which the owner does them.
type tenantCrossing struct {
	cli, method, body string
	// tenants: somebody else of the same tenant may do it, as a member or its admin,
	// or is refused for another reason.
	tenants bool
}

var tenantCrossings = []tenantCrossing{
	{cli: "turns {turn}", method: "TurnService/GetTurn", body: `{"turn_id":"{turn}"}`},
	{cli: "turns --session {session}", method: "TurnService/ListTurns", body: `{"session_id":"{session}"}`},
	{cli: "events {session}", method: "EventService/ListEvents", body: `{"session_id":"{session}"}`},
	{method: "EventService/ListEvents", body: `{"turn_id":"{coded}"}`},
	{method: "SessionService/GetSession", body: `{"session_id":"{session}"}`},
	{cli: "explain {turn}", method: "TurnService/Explain", body: `{"id":"{turn}"}`},
	{cli: "apply {coded} --show"},
	{cli: "chat --detach --session {session} more"},
	{cli: "run --detach --session {session} more", method: "TurnService/SubmitTurn", body: `{"session_id":"{session}","message_id":"m","prompt":"more"}`},
	{method: "TurnService/SubmitTurn", body: `{"session_id":"{session}","message_id":"n","prompt":"mine","workspace_digest":"{workspace}"}`},
	{cli: "chat --new --detach --agent {agent} hello", method: "SessionService/CreateSession", body: `{"agent":"{agent}","idempotency_key":"k"}`, tenants: true},
	{cli: "agents show {agent}", method: "AgentService/GetAgent", body: `{"name":"{agent}"}`, tenants: true},
	{cli: "grant create --agent {agent}", method: "GrantService/CreateGrant", body: `{"agent":"{agent}"}`, tenants: true},
	{cli: "edge bind {runner} {principal} --action files.read", method: "RunnerAdminService/PutBinding",
		body: `{"runner_id":"{runner}","principal_id":"{principal}","actions":["files.read"]}`},
	{method: "ApprovalService/GetApproval", body: `{"approval_id":"{approval}"}`},
	{cli: "approve {approval} --digest {digest}", method: "ApprovalService/DecideApproval", body: `{"approval_id":"{approval}","digest":"{digest}","approve":true}`},
	{cli: "cancel {waiting}", method: "TurnService/CancelTurn", body: `{"turn_id":"{waiting}"}`},
	{cli: "revoke {grant}", method: "GrantService/RevokeGrant", body: `{"grant_id":"{grant}"}`, tenants: true},
	{cli: "sessions close {session}", method: "SessionService/CloseSession", body: `{"session_id":"{session}"}`},
	{cli: "edge unbind {binding}", method: "RunnerAdminService/DeleteBinding", body: `{"binding_id":"{binding}"}`},
	{cli: "edge revoke {runner}", method: "RunnerAdminService/RevokeRunner", body: `{"runner_id":"{runner}"}`},
	{cli: "principal disable {principal}", method: "PrincipalService/DisablePrincipal", body: `{"principal_id":"{principal}"}`, tenants: true},
}

// nothing is the same set of things, of the same form, that nobody has.
func nothing(things map[string]string) map[string]string {
	none := maps.Clone(things)
	for name, id := range none {
		kind, _, isID := strings.Cut(id, "_")
		switch {
		case name == "digest": // an argument, not a thing
		case isID:
			none[name] = kind + "_01aaaaaaaaaaaaaaaaaaaaaaaa"
		case strings.HasPrefix(id, "sha256:"):
			none[name] = "sha256:" + strings.Repeat("0", 64)
		default:
			none[name] = "nobody"
		}
	}
	return none
}

// fill puts things into a row, and blind takes them out of an answer.
func fill(row string, things map[string]string) string {
	for name, id := range things {
		row = strings.ReplaceAll(row, "{"+name+"}", id)
	}
	return row
}

func has(things map[string]string, c tenantCrossing) bool {
	return !strings.Contains(fill(strings.ReplaceAll(c.cli+c.body, `{"`, ""), things), "{")
}

func blind(text string, things map[string]string) string {
	for _, id := range slices.Sorted(maps.Values(things)) {
		text = strings.ReplaceAll(text, id, "…")
	}
	return text
}

// way is how somebody tries.
type way int

const (
	byAPI     way = iota
	byCommand     // and by the API
)

// crosses tries every row on another's things: what comes back is, to the byte,
// what comes back for things that are not there.
func (p *person) crosses(owner *owned, neighbour bool, by way) {
	p.t.Helper()
	none := nothing(owner.things)
	for _, c := range tenantCrossings {
		if c.tenants && neighbour || !has(owner.things, c) {
			continue
		}
		what := p.name + " crosses to " + owner.name + " by " + c.cli + " " + c.method
		if c.cli != "" && by == byCommand {
			p.crossesByCommand(what, c, owner.things, none)
		}
		if c.method != "" {
			got, want := p.post(c.method, fill(c.body, owner.things)), p.post(c.method, fill(c.body, none))
			got.body, want.body = blind(got.body, owner.things), blind(want.body, none)
			if got != want || got.status != 404 || !strings.Contains(got.body, `"not_found"`) {
				p.t.Errorf("%s: it tells what is there:\n%+v\n%+v", what, got, want)
			}
		}
	}
	for name, digest := range map[string]string{"patch": owner.things["patch"], "workspace": owner.things["workspace"]} {
		var got bytes.Buffer
		err, absent := p.api.GetArtifact(p.t.Context(), digest, &got), p.api.GetArtifact(p.t.Context(), none[name], &got)
		if err == nil || absent == nil || blind(err.Error(), owner.things) != blind(absent.Error(), none) || got.Len() > 0 {
			p.t.Errorf("%s reads the %s of %s: %v, %v, %q", p.name, name, owner.name, err, absent, got.String())
		}
	}
}

func (p *person) crossesByCommand(what string, c tenantCrossing, things, none map[string]string) {
	p.t.Helper()
	_, err := p.cli(strings.Fields(fill(c.cli, things))...)
	_, absent := p.cli(strings.Fields(fill(c.cli, none))...)
	if err == nil || absent == nil {
		p.t.Errorf("%s: answered: %v, %v", what, err, absent)
		return
	}
	if got, want := blind(err.Error(), things), blind(absent.Error(), none); got != want || exitCode(err) != notFound {
		p.t.Errorf("%s: exit %d, it tells what is there:\n%s\n%s", what, exitCode(err), got, want)
	}
}

// lists holds nothing of others.
func (o *owned) lists() {
	o.t.Helper()
	for _, args := range []string{"turns", "sessions", "approvals", "unknown", "grant list --all", "edge list", "agents list", "credential list"} {
		out := o.must(append([]string{"--json"}, strings.Fields(args)...)...)
		if found := strangers(out, o.name); len(found) > 0 {
			o.t.Errorf("bivouac %s shows %s the canaries %v", args, o.name, found)
		}
		for _, other := range []string{"laptop-", "assistant-", "coder-"} {
			for _, word := range strings.FieldsFunc(out, func(r rune) bool { return r == '"' || r == ' ' || r == ',' }) {
				if name, ok := strings.CutPrefix(word, other); ok && name != o.name && name != o.tenant && word != o.lent {
					o.t.Errorf("bivouac %s shows %s %s", args, o.name, word)
				}
			}
		}
	}
}

// may does every row on the own things: all of it works.
func (o *owned) may() {
	o.t.Helper()
	for _, digest := range []string{o.things["patch"], o.things["workspace"]} {
		var content bytes.Buffer
		if err := o.api.GetArtifact(o.t.Context(), digest, &content); err != nil || !strings.Contains(content.String(), o.workspace) {
			o.t.Errorf("%s reads an own artifact: %v", o.name, err)
		}
	}
	for _, c := range tenantCrossings {
		if c.cli != "" {
			if _, err := o.cli(strings.Fields(fill(c.cli, o.things))...); err != nil {
				o.t.Errorf("%s may not do this with own things: %v", o.name, err)
			}
			if strings.HasPrefix(c.cli, "edge revoke") || strings.HasPrefix(c.cli, "edge unbind") || strings.HasPrefix(c.cli, "principal") || strings.HasPrefix(c.cli, "sessions close") {
				continue // that was the one time it could be done
			}
		}
		if c.method != "" && !strings.HasPrefix(c.method, "ApprovalService/Decide") {
			if a := o.post(c.method, fill(c.body, o.things)); a.status != 200 {
				o.t.Errorf("%s may not %s: %s", o.name, c.method, fmt.Sprint(a))
			}
		}
	}
}
