//go:build linux

package e2e

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

const tenantAssistant = `
agent "assistant-NAME" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You help."
  model { route = "scripted" }
  device_tools = ["files.list", "files.read", "files.write"]
  tool "fetch" {
    kind        = "http"
    description = "Says whose key it was."
    destination = "ledger"
    method      = "GET"
    path        = "/whose"
    credential  = "ledger"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false }
  }
}
`

const tenantCoder = `
agent "coder-NAME" {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You run commands."
  model { route = "scripted" }
  sandbox_tools = ["shell"]
}
`

// tenantScript does what it is told, and tells what came back.
const tenantScript = `
rule "run" {
  when {
    user_matches = "(?s)run: (?P<command>.+)"
    results      = 0
    offers       = ["shell"]
  }
  call "shell" { arguments = { command = user.command } }
}
rule "read" {
  when {
    user_matches = "read (?P<path>\\S+)"
    results      = 0
    offers       = ["files_read"]
  }
  call "files_read" { arguments = { path = user.path } }
}
rule "fetch" {
  when {
    user_contains = "whose key"
    results       = 0
  }
  call "fetch" { arguments = {} }
}
rule "write" {
  when {
    user_matches = "write (?P<path>\\S+)"
    results      = 0
    offers       = ["files_write"]
  }
  call "files_write" { arguments = { path = user.path, content = "written" } }
}
rule "tell" {
  when { any_result_matches = "(?s)(?P<all>.+)" }
  text = "I got: ${any.all}"
}
rule "otherwise" { text = "Yes." }
`

// owned is a person and one thing of each kind, with a canary in each.
type owned struct {
	*person
	tenant string
	edge   *stack.Edge
	lent   string // name of another's machine that this person may use
	// Canaries, by where they are.
	workspace, session, runner, credential string
	things                                 map[string]string // by the placeholder of crossings
}

// canary is text that must be seen nowhere but where its owner looks.
func canary(owner, place string) string {
	return "canary-" + owner + "-" + place + "-" + rand.Text()[:12]
}

var canaries = regexp.MustCompile(`canary-(\w+)-\w+-\w+`)

// strangers are the canaries in a text that are not of this owner.
func strangers(text, owner string) (found []string) {
	for _, m := range canaries.FindAllStringSubmatch(text, -1) {
		if m[1] != owner {
			found = append(found, m[0])
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// vault is the API behind the destination: it knows whose each key is.
type vault struct {
	*httptest.Server
	owner map[string]string // by key; complete before the first request
}

func newVault(t *testing.T) *vault {
	v := &vault{owner: map[string]string{}}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"key_of": v.owner[key], "echo": key})
	}))
	t.Cleanup(v.Close)
	return v
}

// settle gives a person's tenant its agents and keys, as its admin does.
func (o *owned) settle(v *vault) {
	o.t.Helper()
	o.credential = canary(o.name, "credential")
	v.owner[o.credential] = o.tenant
	file := o.Path("secrets", "ledger-"+o.tenant)
	o.write(file, o.credential+"\n", 0o600)
	o.must("credential", "set", "ledger", "--file", file)
	o.must("credential", "set", "scripted-key", "--file", o.Path("secrets", "scripted-key"))
	for _, source := range []string{tenantAssistant, tenantCoder} {
		_, err := o.api.Agents.ApplyAgent(o.t.Context(), &apiv1.ApplyAgentRequest{Filename: "agent.hcl", Source: strings.ReplaceAll(source, "NAME", o.tenant)})
		if err != nil {
			o.t.Fatal(err)
		}
	}
}

// machine joins a runner with a folder that holds a canary.
func (o *owned) machine() {
	o.t.Helper()
	o.runner = canary(o.name, "runner")
	o.write(o.home+"/notes/secret.txt", o.runner+"\n", 0o644)
	o.edge = o.addEdge(stack.EdgeConfig{Name: "laptop-" + o.name, Folders: []string{"notes=" + o.home + "/notes:rw"}})
}

// look is a command that prints every canary that code can find: in any file
// that was written since the test began, and in what processes show.
func look(began time.Time) string {
	const search = `find / \( -path /proc -o -path /sys \) -prune -o -type f -newerct SINCE -print0 2>/dev/null | ` +
		`xargs -0 grep -haoE '[c]anary-[a-zA-Z0-9-]+' 2>/dev/null | sort -u; ` +
		`cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo 2>/dev/null | tr '\0' '\n' | grep -aoE '[c]anary-[a-zA-Z0-9-]+' | sort -u`
	return strings.ReplaceAll(search, "SINCE", fmt.Sprint("@", began.Unix()))
}

// code runs a command in a sandbox on a workspace with a canary and returns the
// turn: its patch has a copy.
func (o *owned) code(command string) *apiv1.Turn {
	o.t.Helper()
	dir := o.project("project-"+rand.Text()[:6], map[string]string{"secret.txt": o.workspace + "\n"})
	id := o.submit("run", "run: cp secret.txt copied.txt; "+command, "--agent", "coder-"+o.tenant, "--workspace", dir).ID
	return o.completed(id)
}

// talk has one turn with the assistant; an empty session is a new one.
func (o *owned) talk(session, prompt string) *apiv1.Turn {
	o.t.Helper()
	flags := []string{"--new", "--agent", "assistant-" + o.tenant}
	if session != "" {
		flags = []string{"--session", session}
	}
	return o.completed(o.submit("chat", prompt, flags...).ID)
}

// own makes one of each thing that only this person may use.
func (o *owned) own(began time.Time) {
	o.t.Helper()
	o.workspace, o.session = canary(o.name, "workspace"), canary(o.name, "session")
	grants := map[string]string{}
	for _, agent := range []string{"assistant-", "coder-"} {
		var made struct{ Grant struct{ ID string } }
		o.decoded(&made, "grant", "create", "--agent", agent+o.tenant, "--credential", "ledger")
		grants[agent] = made.Grant.ID
	}
	coded := o.code(look(began))
	o.wantOnly("code in the sandbox", coded.GetAnswer(), o.workspace)
	spoken := o.talk("", "remember "+o.session)
	o.things = map[string]string{
		"session": spoken.GetSessionId(), "turn": spoken.GetId(), "coded": coded.GetId(), "patch": coded.GetPatchDigest(),
		"workspace": coded.GetWorkspaceDigest(), "grant": grants["assistant-"], "principal": o.id,
	}
	if o.edge == nil {
		return
	}
	waiting := o.submit("chat", "write notes/new.txt", "--new", "--agent", "assistant-"+o.tenant).ID
	await(o.t, "the approval", func() error {
		res, err := o.api.Approvals.ListApprovals(o.t.Context(), &apiv1.ListApprovalsRequest{})
		if err != nil || len(res.GetApprovals()) == 0 {
			return errors.Join(err, errors.New("none is asked for"))
		}
		o.things["approval"], o.things["digest"] = res.GetApprovals()[0].GetId(), res.GetApprovals()[0].GetDigest()
		return nil
	})
	o.things["waiting"] = waiting
	runners, err := o.api.Runners.ListRunners(o.t.Context(), &apiv1.ListRunnersRequest{})
	if err != nil || len(runners.GetRunners()) != 1 {
		o.t.Fatalf("%s has runners %v, %v", o.name, runners, err)
	}
	o.things["runner"], o.things["agent"] = runners.GetRunners()[0].GetId(), "assistant-"+o.tenant
	o.things["binding"] = runners.GetRunners()[0].GetBindings()[0].GetId()
}

// wantOnly demands this person's canary in a text and nobody else's.
func (o *owned) wantOnly(what, text, own string) {
	o.t.Helper()
	if !strings.Contains(text, own) {
		o.t.Errorf("%s: %s does not see the own canary %s: %q", what, o.name, own, text)
	}
	if found := strangers(text, o.name); len(found) > 0 {
		o.t.Errorf("%s: %s sees %v", what, o.name, found)
	}
}
