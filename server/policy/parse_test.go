package policy

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop/schema"
	"bivouac/edge/runtime/runtimev1"
)

// examples are what people are given, and one with every mistake.
var examples = map[string]string{
	"assistant": "../../test/demo/testdata/assistant.hcl",
	"coder":     "../../cmd/bivouac/cli/defaults/coder.hcl",
	"bad":       "testdata/bad.hcl",
}

func example(t testing.TB, name string) string {
	t.Helper()
	src, err := os.ReadFile(examples[name])
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name + ".golden"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		t.Errorf("%s differs (%v); it is now:\n%s", path, err, got)
	}
}

func parse(t testing.TB, src string) Agent {
	t.Helper()
	a, err := ParseAgent("test.hcl", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestExamples(t *testing.T) {
	a := parse(t, example(t, "assistant"))
	if a.Name != "assistant" || a.Placement != "service" || a.Profile != "personal" || a.DataBoundary != "personal" {
		t.Errorf("assistant: %+v", a)
	}
	if !strings.HasPrefix(a.Instructions, "You are a personal assistant.") || a.Model != (Model{"scripted", 1024}) {
		t.Errorf("assistant: instructions %q, model %+v", a.Instructions, a.Model)
	}
	forecast := a.Tools[len(a.Tools)-1]
	want := HTTPTool{Destination: "weather", Method: "GET", Path: "/v1/forecast?city={city}", Credential: "weather-token", Timeout: 30 * time.Second}
	if forecast.Ref != "http:forecast" || forecast.Placement != runtimev1.Placement_PLACEMENT_GATEWAY ||
		fmt.Sprint(*forecast.HTTP) != fmt.Sprint(want) {
		t.Errorf("forecast: %+v %+v", forecast, forecast.HTTP)
	}
	if want := `{"additionalProperties":false,"properties":{"city":{"maxLength":100,"minLength":1,"type":"string"}},"required":["city"],"type":"object"}`; forecast.InputSchema != want {
		t.Errorf("forecast schema %s, want %s", forecast.InputSchema, want)
	}

	c := parse(t, example(t, "coder"))
	refs := []string{}
	for _, tool := range c.Tools {
		refs = append(refs, tool.Ref+"="+tool.Alias)
	}
	if got, want := strings.Join(refs, " "), "sandbox.read=read_file sandbox.write=write_file sandbox.list=list_files sandbox.search=search sandbox.shell=shell"; got != want {
		t.Errorf("coder tools %s, want %s", got, want)
	}
	if c.Placement != "runner" || c.Limits.MaxCostMicroUSD != 1_500_000 || c.Limits.MaxWall != 30*time.Minute ||
		c.Sandbox.MemoryBytes != 1<<30 || c.Sandbox.DiskBytes != 2<<30 || c.Lease != (Lease{15 * time.Second, 10 * time.Minute}) {
		t.Errorf("coder: %+v", c)
	}
}

// TestFixedTools: every fixed schema compiles, is canonical and refuses what it
// does not name.
func TestFixedTools(t *testing.T) {
	for _, tool := range slices.Concat(deviceTools, sandboxTools) {
		s, err := schema.Compile(tool.InputSchema)
		if err != nil {
			t.Fatalf("%s: %v", tool.Ref, err)
		}
		full := `{"path":"a","content":"x"}`
		switch tool.Ref {
		case "sandbox.search":
			full = `{"pattern":"x"}`
		case "sandbox.shell":
			full = `{"command":"true","timeout_ms":1000}`
		case "files.list", "files.read", "sandbox.read", "sandbox.list":
			full = `{"path":"a"}`
		}
		if err := s.Validate([]byte(full)); err != nil {
			t.Errorf("%s refuses %s: %v", tool.Ref, full, err)
		}
		for _, bad := range []string{`{}`, strings.Replace(full, "{", `{"more":1,`, 1)} {
			if s.Validate([]byte(bad)) == nil {
				t.Errorf("%s admits %s", tool.Ref, bad)
			}
		}
		if !aliasForm.MatchString(tool.Alias) || tool.Description == "" || tool.Effect == 0 || tool.Recovery == 0 {
			t.Errorf("%+v is not whole", tool)
		}
	}
}

const minimal = `agent "a" {
  data_boundary = "personal"
  instructions  = "Be brief."
  model { route = "main" }
  %s
}`

const httpTool = `tool "t" {
    kind        = "http"
    description = "Does."
    destination = "d"
    path        = "/x"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object" }
  }`

func with(body string) string { return fmt.Sprintf(minimal, body) }

// change returns the http tool with one line replaced or added.
func change(name, line string) string {
	lines := strings.Split(httpTool, "\n")
	for i, l := range lines {
		if strings.HasPrefix(strings.TrimSpace(l), name+" ") {
			lines[i] = "    " + line
			return with(strings.Join(lines, "\n"))
		}
	}
	return with(strings.Join(append(lines[:len(lines)-1:len(lines)-1], "    "+line, "  }"), "\n"))
}

// inspected says how a shell's interrupted call is looked for; shell is an agent with
// such a tool.
const inspected = "recovery = \"inspectable\"\n inspector = \"sh tools/released\""

func shell(body string) string {
	return with("placement = \"runner\"\n tool \"shell\" {\n kind = \"sandbox\"\n " + body + "\n }")
}

// An inspectable shell reaches the runner with its inspector, and one that is only
// named stays opaque.
func TestInspectableShell(t *testing.T) {
	a, err := ParseAgent("test.hcl", []byte(shell(inspected)))
	if err != nil {
		t.Fatal(err)
	}
	if tool := a.Tools[0]; tool.Ref != "sandbox.shell" || tool.Recovery != runtimev1.Recovery_RECOVERY_INSPECTABLE || tool.Inspector != "sh tools/released" {
		t.Errorf("%+v", tool)
	}
	a, err = ParseAgent("test.hcl", []byte(with("placement = \"runner\"\n sandbox_tools = [\"shell\"]")))
	if err != nil || a.Tools[0].Recovery != runtimev1.Recovery_RECOVERY_OPAQUE || a.Tools[0].Inspector != "" {
		t.Errorf("%+v, %v", a.Tools, err)
	}
}

// TestRefusals pair each refused definition with its nearest accepted twin; the
// error names file, line and reason.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ bad, good, says string }{
		"no agent":            {"", with(""), "exactly one agent block, not 0"},
		"two agents":          {with("") + "\n" + with(""), with(""), "exactly one agent block, not 2"},
		"missing comma":       {with("runners = [\"a\" \"b\"]"), with(`runners = ["a", "b"]`), "test.hcl:5:"},
		"unknown attribute":   {with("runnners = []"), with("runners = []"), `Did you mean "runners"`},
		"unknown block":       {with("limit {}"), with("limits {}"), "test.hcl:5:3"},
		"name":                {strings.Replace(with(""), `"a"`, `"A b"`, 1), with(""), "agent's name"},
		"instructions":        {strings.Replace(with(""), "Be brief.", " ", 1), with(""), "instructions are missing"},
		"no data boundary":    {strings.Replace(with(""), `data_boundary = "personal"`, "", 1), with(""), "data_boundary is missing"},
		"profile":             {with(`profile = "root"`), with(`profile = "enterprise"`), "one of personal, coding, enterprise"},
		"placement":           {with(`placement = "moon"`), with(`placement = "service"`), "one of service, runner"},
		"allocation":          {with(`allocation = "mine"`), with(`allocation = "shared"`), "one of shared, own"},
		"own, in the service": {with(`allocation = "own"`), with("placement = \"runner\"\n allocation = \"own\"\n sandbox_tools = [\"read\"]"), "allocation = \"own\" needs placement = \"runner\""},
		"trust":               {with(`trust = "some"`), with(`trust = "trusted"`), "one of untrusted, trusted"},
		"adapter":             {with(`adapter = "pi"`), with(`adapter = "scripted"`), "one of native, scripted"},
		"no model":            {strings.Replace(with(""), `model { route = "main" }`, "", 1), with(""), "model block is missing"},
		"second model":        {with(`model { route = "b" }`), with(""), "second model block"},
		"runner, no sandbox":  {with(`placement = "runner"`), with("placement = \"runner\"\n sandbox_tools = [\"read\"]"), "needs sandbox_tools"},
		"service, sandbox":    {with(`sandbox_tools = ["read"]`), with("placement = \"runner\"\n sandbox_tools = [\"read\"]"), "need placement = \"runner\""},
		"unknown device tool": {with(`device_tools = ["files.digest"]`), with(`device_tools = ["files.read"]`), `no "files.digest"`},
		"device tool twice":   {with(`device_tools = ["files.read", "files.read"]`), with(`device_tools = ["files.read", "files.list"]`), "named twice"},
		"alias twice":         {with("device_tools = [\"files.read\"]\n" + strings.Replace(httpTool, `"t"`, `"files_read"`, 1)), with("device_tools = [\"files.read\"]\n" + httpTool), "one alias has one placement"},
		"type":                {with("runners = 5"), with(`runners = ["5"]`), "a list of strings"},
		"null":                {with("profile = null"), with(`profile = "personal"`), "must be a string"},
		"reference":           {with("profile = var.x"), with(`profile = "personal"`), "Variables not allowed"},
		"limit zero":          {with("limits { max_model_calls = 0 }"), with("limits { max_model_calls = 1 }"), "above zero"},
		"limit fraction":      {with("limits { max_tool_calls = 1.5 }"), with("limits { max_tool_calls = 2 }"), "whole number"},
		"limit over ceiling":  {with("limits { max_model_calls = 501 }"), with("limits { max_model_calls = 500 }"), "above what the profile allows: at most 500"},
		"cost":                {with("limits { max_cost_usd = 0 }"), with("limits { max_cost_usd = 0.000001 }"), "above zero"},
		"cost over ceiling":   {with("limits { max_cost_usd = 100.5 }"), with("limits { max_cost_usd = 100 }"), "at most 100"},
		"duration":            {with(`limits { max_wall = "soon" }`), with(`limits { max_wall = "90s" }`), "must be a duration"},
		"size":                {with(`sandbox { memory = "1 GB" }`), with(`sandbox { memory = "1GiB" }`), "is no size"},
		"boundary":            {with(`sandbox { boundary = "vm" }`), with(`sandbox { boundary = "microvm" }`), "process, container, gvisor, microvm"},
		"retention shorter":   {with("lease {\n authority_ttl = \"30s\"\n retention = \"20s\"\n }"), with("lease {\n authority_ttl = \"20s\"\n retention = \"20s\"\n }"), "shorter than authority_ttl"},
		"ttl too short":       {with(`lease { authority_ttl = "100ms" }`), with(`lease { authority_ttl = "500ms" }`), "at least 500ms"},
		"approval wait":       {with(`approvals { ttl = "169h" }`), with(`approvals { ttl = "168h" }`), "at most 168h"},
		"session lifetime":    {with(`limits { session_max = "8784h" }`), with(`limits { session_max = "8760h" }`), "at most 8760h"},
		"enterprise wait":     {with("profile = \"enterprise\"\n  approvals { ttl = \"25h\" }"), with("profile = \"enterprise\"\n  approvals { ttl = \"24h\" }"), "at most 24h"},
		"enterprise lifetime": {with("profile = \"enterprise\"\n  limits { session_max = \"721h\" }"), with("profile = \"enterprise\"\n  limits { session_max = \"720h\" }"), "at most 720h"},
		"enterprise idle":     {with("profile = \"enterprise\"\n  limits { session_idle = \"169h\" }"), with("profile = \"enterprise\"\n  limits { session_idle = \"168h\" }"), "at most 168h"},
		"on denied":           {with(`approvals { on_denied = "retry" }`), with(`approvals { on_denied = "fail" }`), "one of continue, fail"},
		"kind":                {change("kind", `kind = "shell"`), with(httpTool), `"http", "mcp", "ssh", "device" or "sandbox"`},
		"inspector of http":   {change("inspector", `inspector = "true"`), with(httpTool), "is for kind = \"sandbox\""},
		"inspector missing":   {shell("recovery = \"inspectable\""), shell(inspected), "with 10 when it did not"},
		"inspector, opaque":   {shell("recovery = \"opaque\"\n inspector = \"true\""), shell(inspected), "is for \"inspectable\""},
		"inspector too long":  {shell("recovery = \"inspectable\"\n inspector = \"" + strings.Repeat("x", 4097) + "\""), shell("recovery = \"inspectable\"\n inspector = \"" + strings.Repeat("x", 4096) + "\""), "1 to 4096 bytes"},
		"shell's effect":      {shell(inspected + "\n effect = \"R0\""), shell(inspected), "effect is fixed for a sandbox tool"},
		"inspected read":      {strings.Replace(shell(inspected), `tool "shell"`, `tool "read"`, 1), shell(inspected), "is for the tool \"shell\""},
		"shell twice":         {strings.Replace(shell(inspected), "placement", "sandbox_tools = [\"shell\"]\n placement", 1), shell(inspected), "named twice"},
		"shell in service":    {strings.Replace(shell(inspected), `"runner"`, `"service"`, 1), shell(inspected), "need placement = \"runner\""},
		"no description":      {change("description", `description = ""`), with(httpTool), "the model chooses by it"},
		"no destination":      {change("destination", ""), with(httpTool), "destination must name"},
		"credential alone":    {strings.Replace(change("credential", `credential = "key"`), `destination = "d"`, "", 1), change("credential", `credential = "key"`), "a credential needs a destination"},
		"credential value":    {change("credential", `credential = "sk live/123="`), change("credential", `credential = "key"`), "never its value"},
		"no effect":           {change("effect", ""), with(httpTool), "effect is \"\": it must be one of R0, R1, R2, R3, R4"},
		"no recovery":         {change("recovery", ""), with(httpTool), "one of idempotent, inspectable, opaque"},
		"method":              {change("method", `method = "CONNECT"`), change("method", `method = "HEAD"`), "one of GET"},
		"host in path":        {change("path", `path = "//evil.example/x"`), with(httpTool), "path must begin with one /"},
		"path leaves":         {change("path", `path = "/a/../b"`), with(httpTool), "stay below"},
		"path argument":       {change("path", `path = "/x/{id}"`), strings.Replace(change("path", `path = "/x/{id}"`), `{ type = "object" }`, `{ type = "object", required = ["id"], properties = { id = { type = "string" } } }`, 1), "{id} is not a required property"},
		"body argument":       {strings.Replace(change("method", `method = "PUT"`), "input ", "body = [\"x\"]\n    input ", 1), change("method", `method = "PUT"`), `"x" is not a property`},
		"body of GET":         {change("body", `body = ["x"]`), with(httpTool), "has no body"},
		"POST idempotent":     {change("method", `method = "POST"`), strings.Replace(change("method", `method = "POST"`), "input ", "idempotency_header = \"Idempotency-Key\"\n    input ", 1), "only with an idempotency_header"},
		"DELETE reads":        {change("method", `method = "DELETE"`), strings.Replace(change("method", `method = "DELETE"`), `"R0"`, `"R4"`, 1), "its effect is R4"},
		"no input":            {change("input", ""), with(httpTool), "input is missing"},
		"input not object":    {change("input", `input = { type = "string" }`), with(httpTool), "must describe an object"},
		"input no schema":     {change("input", `input = { type = "objekt" }`), with(httpTool), "no JSON Schema"},
		"input remote":        {change("input", `input = { type = "object", "$ref" = "https://example.com/s" }`), with(httpTool), "stands alone"},
		"input text":          {change("input", `input = "{"`), change("input", `input = "{\"type\":\"object\"}"`), "no JSON Schema"},
		"egress in service":   {with(`egress = ["go-proxy"]`), with(`egress = []`), "needs placement = \"runner\""},
		"egress by address":   {with(`egress = ["https://proxy.example"]`), with(`egress = []`), "no name of a destination"},
		"fixed description":   {with(`tool "files.read" {` + "\n kind = \"device\"\n description = \"x\"\n }"), with(`tool "files.read" {` + "\n kind = \"device\"\n approval = \"always\"\n }"), "fixed for a device action"},
		"not a device action": {with(`tool "files.rm" { kind = "device" }`), with(`tool "files.list" { kind = "device" }`), `no device action "files.rm"`},
	} {
		if _, err := ParseAgent("test.hcl", []byte(c.good)); err != nil {
			t.Errorf("%s: the twin was refused: %v", name, err)
		}
		_, err := ParseAgent("test.hcl", []byte(c.bad))
		if err == nil || protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "test.hcl:") {
			t.Errorf("%s: got %v, want a refusal with %q", name, err, c.says)
		}
	}
}

// TestAllProblemsAtOnce: a person mends a file once.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := ParseAgent("bad.hcl", []byte(example(t, "bad")))
	if err == nil {
		t.Fatal("accepted")
	}
	golden(t, "bad", err.Error()+"\n")
	var many strings.Builder
	for i := range maxProblems + 7 {
		fmt.Fprintf(&many, "wrong_%d = 1\n", i)
	}
	_, err = ParseAgent("many.hcl", []byte(with("\n"+many.String())))
	if err == nil || !strings.HasSuffix(err.Error(), "\nand 7 more") {
		t.Errorf("many problems: %v", err)
	}
}

// TestNesting: what a recursive parser would follow for ever is refused before
// it gets there; the same shapes in moderation are not.
func TestNesting(t *testing.T) {
	for name, form := range map[string]struct{ open, middle, shut string }{
		"parentheses": {"(", `"a"`, ")"},
		"lists":       {"[", `"a"`, "]"},
		"objects":     {"{a=", `"a"`, "}"},
		"signs":       {"-", `1`, ""},
		"negations":   {"!", `true`, ""},
		"templates":   {"\"${", `"a"`, "}\""},
		"conditions":  {"true?1:", `1`, ""},
		"calls":       {"f(", `1`, ")"},
		"splats":      {"a[", `1`, "]"},
	} {
		source := func(n int) []byte {
			return []byte("agent \"a\" {\n x = " + strings.Repeat(form.open, n) + form.middle + strings.Repeat(form.shut, n) + "\n}")
		}
		if _, err := ParseAgent("deep.hcl", source(20)); err == nil || strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("%s, 20 deep: %v", name, err)
		}
		for _, n := range []int{maxNesting + 1, 8000} {
			_, err := ParseAgent("deep.hcl", source(n))
			if err == nil || !strings.Contains(err.Error(), "nested deeper") {
				t.Errorf("%s, %d deep: %v", name, n, err)
			}
		}
	}
	long := with("") + strings.Repeat("# a comment\n", maxSource/12)
	if _, err := ParseAgent("long.hcl", []byte(long)); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("a definition of %d bytes: %v", len(long), err)
	}
	if _, err := ParseAgent("long.hcl", []byte(long[:maxSource-1])); err != nil {
		t.Errorf("a definition of %d bytes: %v", maxSource-1, err)
	}
}

// TestApprovalOnlyAsFarAsTheProfile is INV-10 for approvals.
func TestApprovalOnlyAsFarAsTheProfile(t *testing.T) {
	for _, profile := range ProfileNames {
		for effect, class := range effects {
			src := strings.Replace(change("approval", `approval = "never"`), `effect      = "R0"`, `effect = "`+effect+`"`, 1)
			src = strings.Replace(src, "data_boundary", "profile = \""+profile+"\"\n  placement = \"service\"\n  data_boundary", 1)
			a, err := ParseAgent("test.hcl", []byte(src))
			p, _ := ProfileOf(profile)
			if want := class <= p.NeverApprove; (err == nil) != want {
				t.Errorf("%s, %s: approval = never: %v", profile, effect, err)
			}
			if err == nil && NeedsApproval(a.Tools[0]) {
				t.Errorf("%s, %s: asks although it says never", profile, effect)
			}
		}
	}
	if p, ok := ProfileOf("enterprise"); !ok || p.NeverApprove >= runtimev1.Effect_EFFECT_DESTRUCTIVE {
		t.Error("a profile lets a destructive effect run unasked")
	}
	if _, ok := ProfileOf("root"); ok {
		t.Error("a profile that does not exist was found")
	}
}

func TestNeedsApproval(t *testing.T) {
	for name, class := range effects {
		byEffect := class >= runtimev1.Effect_EFFECT_IRREVERSIBLE_LOCAL
		if got := NeedsApproval(Tool{Effect: class}); got != byEffect {
			t.Errorf("%s asks: %t", name, got)
		}
		if !NeedsApproval(Tool{Effect: class, Approval: "always"}) {
			t.Errorf("%s does not ask although it says always", name)
		}
		if EffectName(class) != name {
			t.Errorf("%s is named %s", name, EffectName(class))
		}
	}
	for name, class := range recoveries {
		if RecoveryName(class) != name {
			t.Errorf("%s is named %s", name, RecoveryName(class))
		}
	}
}

func FuzzParseAgent(f *testing.F) {
	for _, name := range []string{"assistant", "coder", "bad"} {
		f.Add([]byte(example(f, name)))
	}
	f.Add([]byte(with(httpTool)))
	f.Fuzz(func(t *testing.T, src []byte) {
		a, err := ParseAgent("f.hcl", src)
		if err != nil {
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		p, ok := ProfileOf(a.Profile)
		if !ok || a.Limits.MaxModelCalls <= 0 || a.Limits.MaxModelCalls > p.Ceiling.Limits.MaxModelCalls || a.Lease.Retention < a.Lease.AuthorityTTL {
			t.Fatalf("accepted %+v", a)
		}
		if _, err := AcceptedSet(a, nil); err != nil {
			t.Fatalf("accepted, and has no accepted set: %v", err)
		}
	})
}
