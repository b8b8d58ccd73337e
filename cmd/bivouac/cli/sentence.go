package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/consul/refused"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
)

// sentence is what a person who waits wants to know of an event; empty when that
// is nothing. bivouac events shows all of them.
func (f *follower) sentence(ctx context.Context, e *apiv1.Event) string {
	var d map[string]string
	if err := json.Unmarshal([]byte(e.GetData()), &d); err != nil {
		return "" // written by a newer server
	}
	tool := f.tool(d)
	switch e.GetType() {
	case "tool.requested":
		return strings.TrimSpace(tool + " " + clip(e.GetPayload(), 100))
	case "tool.finished":
		f.noteAbsent(e)
		if d["status"] == "ok" {
			return ""
		}
		f.failed = append(f.failed, tool+because(d["code"])+whyOf(e))
		if by := f.denied[e.GetActionId()]; by != "" {
			return tool + " did not run: denied by " + by
		}
		return strings.TrimSpace(tool+" ended: "+plain(d["status"])) + because(d["code"]) + f.mend(e, d["code"])
	case "tool.unknown":
		return "nobody knows whether " + tool + " happened: bivouac unknown"
	case "grant.rotated":
		return "the secret part of " + plain(d["grant"]) + " was renewed"
	case "approval.decided":
		return "the approval is " + strings.ToLower(plain(d["state"])) + f.decidedBy(ctx, e, d["state"])
	case "owner.requested":
		return plain(d["tool"]) + " waits for the owner of " + f.machine(ctx, d["runner"]) + ", who holds a second key over it"
	case "owner.decided":
		return "the owner of " + f.machine(ctx, d["runner"]) + " decided: " + plain(d["decision"]) + because(d["by"])
	case "model.failed":
		if d["code"] == string(protocol.CodeBudgetExhausted) {
			return "" // it is topped up and asked again, or ends the turn, which is said then
		}
		return f.modelFailed(ctx, d)
	case "attempt.queued":
		if e.GetActionId() == "" {
			return "waits for a machine"
		}
		if d["tool"] != "" && d["tool"] != prepares { // which machine the model chose, or there is
			return plain(d["tool"]) + " goes to " + f.machine(ctx, d["runner"])
		}
	case "attempt.started":
		if d["boundary"] != "" { // a device action has none
			return "works in a sandbox on " + f.machine(ctx, d["runner"]) + " (" + plain(d["boundary"]) + ", limits by " + plain(d["limits"]) + ")" + ownOf(d["allocation"]) + lessOf(d["narrowed"])
		}
	case "attempt.ended":
		if d["state"] != "SUCCEEDED" {
			at := ""
			if d["runner"] != "" { // none was placed where it is empty
				at = " on " + f.machine(ctx, d["runner"])
			}
			return "the attempt" + at + " ended: " + strings.ToLower(plain(d["state"])) + because(d["reason"])
		}
	case "sandbox.moved":
		return f.moved(ctx, e, d)
	case "turn.cancel_requested":
		return "is being cancelled"
	}
	return ""
}

// modelFailed says who did not reach whom, once until something else happens: a call
// is tried a few times, and all of them may fail alike.
func (f *follower) modelFailed(ctx context.Context, d map[string]string) string {
	line := "the model could not be asked" + because(d["code"]) + "; it is asked again a few times"
	switch {
	case d["unreachable"] == "":
	case d["runner"] != "":
		line = f.machine(ctx, d["runner"]) + " cannot reach the broker; it tries a few times. What is in the way says " + edgeAt(f.app.devEdge(d["runner"]), "doctor")
	default:
		line = "the server cannot reach its broker; it tries a few times. Start it: bivouac-broker run  (where it is; bivouac doctor says more)"
	}
	if line == f.stuck {
		return ""
	}
	f.stuck = line
	return line
}

// ownOf says that a turn has an allocation of its own, and which job makes it.
func ownOf(job string) string {
	if job == "" {
		return ""
	}
	return " in an allocation of its own (job " + plain(job) + ")"
}

// moved says what became of the sandboxes of a turn while its machine was on its own.
func (f *follower) moved(ctx context.Context, e *apiv1.Event, d map[string]string) string {
	at := f.machine(ctx, d["runner"])
	switch d["state"] {
	case "frozen":
		return "stands still on " + at + because(clip(e.GetPayload(), 100))
	case "running":
		return "goes on where it stood still, on " + at
	case "killed":
		return "its sandboxes on " + at + " were ended" + because(clip(e.GetPayload(), 100))
	}
	return ""
}

// decidedBy names who denied, and remembers it for the end of the call.
func (f *follower) decidedBy(ctx context.Context, e *apiv1.Event, state string) string {
	if state != "DENIED" {
		return ""
	}
	got, err := f.client.Approvals.GetApproval(ctx, &apiv1.GetApprovalRequest{ApprovalId: e.GetApprovalId()})
	name := plain(got.GetApproval().GetDecidedByName())
	if err != nil || name == "" {
		return ""
	}
	f.denied[e.GetActionId()] = name
	return ", by " + name
}

// mend points to what a person could write, where a path was refused.
func (f *follower) mend(e *apiv1.Event, code string) string {
	var r runtimev1.ToolResult
	b, err := base64.StdEncoding.DecodeString(e.GetPayload())
	if code != string(protocol.CodePolicyDenied) || err != nil || proto.Unmarshal(b, &r) != nil {
		return ""
	}
	if _, mendable := refused.Parse(r.GetText()); !mendable {
		return ""
	}
	return "; what to write, and where: bivouac explain " + f.turn
}

// notFound is how shells say that there is no such program.
var notFound = regexp.MustCompile(`(?m)(?:^|[\s:])([\w.+-]{1,40}): (?:command )?not found\s*$`)

// noteAbsent remembers a program that a sandbox did not have.
func (f *follower) noteAbsent(e *apiv1.Event) {
	var r runtimev1.ToolResult
	b, err := base64.StdEncoding.DecodeString(e.GetPayload())
	if err != nil || proto.Unmarshal(b, &r) != nil {
		return
	}
	if m := notFound.FindStringSubmatch(r.GetText()); m != nil {
		f.absent = m[1]
	}
}

// trouble is what a person should know of a turn's tools before taking its result.
func (f *follower) trouble() string {
	var said []string
	if n := len(f.failed); n > 0 {
		calls := "1 tool call"
		if n > 1 {
			calls = fmt.Sprintf("%d tool calls", n)
		}
		said = append(said, calls+" failed, and bivouac events "+f.turn+" shows all that happened:")
		for _, one := range f.failed[max(0, n-maxSaid):] {
			said = append(said, "  "+one)
		}
	}
	if f.absent != "" {
		said = append(said, "the sandbox has no "+plain(f.absent)+": a toolchain block in the machine's edge.hcl shows it one (bivouac-edge join --toolchain name=/path writes it)")
	}
	return strings.Join(said, "\n")
}

// maxSaid is how many failed calls are named, the newest.
const maxSaid = 5

// whyOf is what the model read of a call that failed, on one line.
func whyOf(e *apiv1.Event) string {
	var r runtimev1.ToolResult
	b, err := base64.StdEncoding.DecodeString(e.GetPayload())
	if err != nil || proto.Unmarshal(b, &r) != nil || r.GetText() == "" {
		return "" // erased, or nothing was said
	}
	return ": " + clip(strings.TrimSpace(r.GetText()), 300)
}

// prepares is the action that reads what a write would replace.
const prepares = "files.digest"

// tool is the name of the tool that an event is about: some name its call only.
func (f *follower) tool(d map[string]string) string {
	call := d["call_id"]
	if d["tool"] == prepares {
		return prepares // of the call, which keeps its own name
	}
	for _, name := range []string{d["tool"], f.tools[call], d["alias"]} {
		if name != "" {
			f.tools[call] = name
			return plain(name)
		}
	}
	return "a tool"
}

// machine is what people call a runner, if they may see it.
func (f *follower) machine(ctx context.Context, id string) string {
	if f.names == nil {
		f.names = map[string]string{}
		if res, err := f.client.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{}); err == nil {
			for _, r := range res.GetRunners() {
				f.names[r.GetId()] = r.GetName()
			}
		}
	}
	if name := f.names[id]; name != "" {
		return plain(name)
	}
	return plain(id)
}

// lessOf says what the owner of the machine gives less of than the agent asked for.
func lessOf(narrowed string) string {
	if narrowed == "" {
		return ""
	}
	return "; its owner gives less than the agent asks for: " + plain(narrowed)
}

func because(code string) string {
	if code == "" {
		return ""
	}
	return " (" + plain(code) + ")"
}
