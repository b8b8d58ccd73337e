package policy

import (
	"strings"

	"bivouac/edge/runtime/runtimev1"
)

// Tools with fixed schemas, effects and recovery. A device action runs on a
// person's machine; a sandbox tool runs in the disposable workspace of an
// attempt, so that what it writes is reversible.
var (
	deviceTools = []Tool{
		fixedTool("files.list", "files_list", "Lists a folder on the person's machine. Paths are <folder>/<path>; an empty path lists the folders that may be used.",
			runtimev1.Placement_PLACEMENT_DEVICE, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"path":{"description":"<folder>/<path>, or empty","maxLength":4096,"type":"string"}`, "path"),
		fixedTool("files.read", "files_read", "Reads a text file on the person's machine.",
			runtimev1.Placement_PLACEMENT_DEVICE, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"max_bytes":{"maximum":1048576,"minimum":1,"type":"integer"},"path":{"maxLength":4096,"minLength":1,"type":"string"}`, "path"),
		fixedTool("files.write", "files_write", "Writes a whole text file on the person's machine, after the person approved it.",
			runtimev1.Placement_PLACEMENT_DEVICE, runtimev1.Effect_EFFECT_IRREVERSIBLE_LOCAL, runtimev1.Recovery_RECOVERY_INSPECTABLE,
			`"content":{"type":"string"},"path":{"maxLength":4096,"minLength":1,"type":"string"}`, "content", "path"),
	}
	sandboxTools = []Tool{
		fixedTool("sandbox.read", "read_file", "Reads a file of the workspace.",
			runtimev1.Placement_PLACEMENT_SANDBOX, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"path":{"maxLength":4096,"minLength":1,"type":"string"}`, "path"),
		fixedTool("sandbox.write", "write_file", "Writes a whole file of the workspace and makes its folders.",
			runtimev1.Placement_PLACEMENT_SANDBOX, runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"content":{"type":"string"},"path":{"maxLength":4096,"minLength":1,"type":"string"}`, "content", "path"),
		fixedTool("sandbox.list", "list_files", "Lists a folder of the workspace; an empty path is its top.",
			runtimev1.Placement_PLACEMENT_SANDBOX, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"path":{"maxLength":4096,"type":"string"}`, "path"),
		fixedTool("sandbox.search", "search", "Searches the files of the workspace for a regular expression (RE2).",
			runtimev1.Placement_PLACEMENT_SANDBOX, runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_IDEMPOTENT,
			`"path":{"maxLength":4096,"type":"string"},"pattern":{"maxLength":1024,"minLength":1,"type":"string"}`, "pattern"),
		fixedTool("sandbox.shell", "shell", "Runs a command line with sh in the workspace and returns its output and exit code. There is no network.",
			runtimev1.Placement_PLACEMENT_SANDBOX, runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL, runtimev1.Recovery_RECOVERY_OPAQUE,
			`"command":{"minLength":1,"type":"string"},"timeout_ms":{"maximum":21600000,"minimum":1,"type":"integer"}`, "command"),
	}
)

// RefDigest is the internal action by which the engine learns the pre-image of
// files.write. No model is ever offered it.
const RefDigest = "files.digest"

// RefWrite is the device action whose approval binds a pre-image.
const RefWrite = "files.write"

// fixedTool makes a tool; properties and required are in canonical order.
func fixedTool(ref, alias, description string, p runtimev1.Placement, e runtimev1.Effect, rec runtimev1.Recovery, properties string, required ...string) Tool {
	schema := `{"additionalProperties":false,"properties":{` + properties + `},"required":["` +
		strings.Join(required, `","`) + `"],"type":"object"}`
	return Tool{Ref: ref, Alias: alias, Description: description, Placement: p, Effect: e, Recovery: rec, InputSchema: schema}
}

// named finds a fixed tool by reference, or by the part of it after the dot.
func named(known []Tool, ref string) (Tool, bool) {
	for _, t := range known {
		if t.Ref == ref || t.inSandbox() && strings.TrimPrefix(t.Ref, "sandbox.") == ref {
			return t, true
		}
	}
	return Tool{}, false
}

func names(known []Tool) []string {
	out := make([]string, len(known))
	for i, t := range known {
		out[i] = strings.TrimPrefix(t.Ref, "sandbox.")
	}
	return out
}

func (t Tool) inSandbox() bool { return t.Placement == runtimev1.Placement_PLACEMENT_SANDBOX }

func (t Tool) onDevice() bool { return t.Placement == runtimev1.Placement_PLACEMENT_DEVICE }

// NeedsApproval is the rule of approvals: what reads or can be taken back runs
// by itself, everything else asks, and a definition may ask for more. A
// definition that wrote "never" was admitted by ParseAgent only as far as its
// profile goes.
func NeedsApproval(t Tool) bool {
	switch t.Approval {
	case "always":
		return true
	case "never":
		return false
	}
	return t.Effect > runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL
}

// Effects by the names that definitions use.
var effects = map[string]runtimev1.Effect{
	"R0": runtimev1.Effect_EFFECT_READ,
	"R1": runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL,
	"R2": runtimev1.Effect_EFFECT_IRREVERSIBLE_LOCAL,
	"R3": runtimev1.Effect_EFFECT_OUTBOUND,
	"R4": runtimev1.Effect_EFFECT_DESTRUCTIVE,
}

var recoveries = map[string]runtimev1.Recovery{
	"idempotent":  runtimev1.Recovery_RECOVERY_IDEMPOTENT,
	"inspectable": runtimev1.Recovery_RECOVERY_INSPECTABLE,
	"opaque":      runtimev1.Recovery_RECOVERY_OPAQUE,
}

// EffectName is the name of an effect class as definitions and people use it.
func EffectName(e runtimev1.Effect) string {
	for name, effect := range effects {
		if effect == e {
			return name
		}
	}
	return "unknown"
}

// RecoveryName is the name of a recovery class as definitions use it.
func RecoveryName(r runtimev1.Recovery) string {
	for name, recovery := range recoveries {
		if recovery == r {
			return name
		}
	}
	return "unknown"
}
