package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/sandbox"
)

// maxArguments of one call.
const maxArguments = 1 << 20

// Places inside sandbox B.
const (
	workspaceInside = "/workspace"
	homeInside      = "/home/agent"
	cachesInside    = "/caches"
	path            = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// command is one process of sandbox B.
type command struct {
	argv    []string
	stdin   string
	timeout time.Duration
	// writes: it may change files.
	writes bool
	// outward: it may ask for packages, where the turn names registries.
	outward bool
}

// exec runs one call of a sandbox tool in a sandbox of its own and returns its
// one result. An error means that the attempt is over.
func (a *attempt) exec(ctx context.Context, call *runtimev1.ToolCall, output func([]byte) error) (*runtimev1.ToolResult, error) {
	a.execs.Lock() // one after the other, whatever the worker does
	defer a.execs.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	cmd, refusal := a.command(call)
	if refusal != nil {
		return refusal, nil
	}
	if err := a.tidyHome(); err != nil {
		return nil, a.breaks(err)
	}
	fault.Here(fault.SuperviseExecStarted)
	heard := newCapture(int(a.spec.GetLimits().GetMaxResultBytes()), output)
	exit, err := a.group.Run(ctx, a.process(cmd, heard))
	fault.Here(fault.SuperviseExecDone)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, a.breaks(err)
	}
	exit.DiskLimit = a.spent(exit)
	if cmd.writes {
		changed, err := a.repo.Changed(ctx)
		if err != nil {
			return nil, a.breaks(err)
		}
		if changed {
			a.soil()
		}
	}
	return a.judge(call.GetId(), cmd, exit, heard), nil
}

// command reads a call strictly. A call that cannot run has its result here.
func (a *attempt) command(call *runtimev1.ToolCall) (command, *runtimev1.ToolResult) {
	tool := a.tool(call.GetAlias())
	if tool.GetPlacement() != runtimev1.Placement_PLACEMENT_SANDBOX {
		return command{}, refused(call, protocol.CodePolicyDenied, fmt.Sprintf("there is no sandbox tool %q in this turn", call.GetAlias()))
	}
	if len(call.GetArguments()) > maxArguments {
		return command{}, refused(call, protocol.CodeInvalidArgument, fmt.Sprintf("the arguments have more than %d bytes", maxArguments))
	}
	switch name := strings.TrimPrefix(tool.GetRef(), "sandbox."); name {
	case "read", "list", "search", "write":
		return command{argv: []string{WorkerInside, "tool", name}, stdin: call.GetArguments(), timeout: a.limits.exec, writes: name == "write"}, nil
	case "shell":
		return a.shell(call)
	default:
		return command{}, refused(call, protocol.CodeIncompatible, fmt.Sprintf("this runner has no sandbox tool %q; upgrade bivouac-edge", tool.GetRef()))
	}
}

func (a *attempt) shell(call *runtimev1.ToolCall) (command, *runtimev1.ToolResult) {
	var args struct {
		Command   string `json:"command"`
		TimeoutMS int64  `json:"timeout_ms"`
	}
	d := json.NewDecoder(strings.NewReader(call.GetArguments()))
	d.DisallowUnknownFields()
	if err := d.Decode(&args); err != nil || args.Command == "" || args.TimeoutMS < 0 {
		return command{}, refused(call, protocol.CodeInvalidArgument, fmt.Sprintf("the arguments are not accepted: {command, timeout_ms?} is expected (%v)", err))
	}
	if strings.ContainsRune(args.Command, 0) {
		return command{}, refused(call, protocol.CodeInvalidArgument, "the command contains a zero byte")
	}
	timeout := a.limits.exec
	if args.TimeoutMS > 0 {
		timeout = min(timeout, millis(args.TimeoutMS))
	}
	return command{argv: []string{"/bin/sh", "-c", args.Command}, timeout: timeout, writes: true, outward: true}, nil
}

// process is the command in sandbox B: the workspace, a home that lasts as long
// as the attempt, toolchains, and no channel but the doors of lead (INV-12).
func (a *attempt) process(c command, heard io.Writer) sandbox.Process {
	p := sandbox.Process{
		Role: sandbox.RoleCode, Argv: c.argv, Dir: workspaceInside, Workspace: a.cfg.workspaceDir(),
		Stdin: strings.NewReader(c.stdin), Stdout: heard, Stderr: heard, Timeout: c.timeout,
		Binds: []sandbox.Bind{{Host: a.cfg.homeDir(), Inside: homeInside, Writable: true}},
	}
	if a.cfg.WorkerPath != "" {
		p.Binds = append(p.Binds, sandbox.Bind{Host: a.cfg.WorkerPath, Inside: WorkerInside})
	}
	search := path
	for _, t := range a.cfg.Toolchains {
		if !strings.HasPrefix(t.Path, "/usr/") { // which is there already
			p.Binds = append(p.Binds, sandbox.Bind{Host: t.Path, Inside: t.Path})
		}
		if st, err := os.Stat(filepath.Join(t.Path, "bin")); err == nil && st.IsDir() {
			search = filepath.Join(t.Path, "bin") + ":" + search
		}
	}
	p.Env = []string{"PATH=" + search, "HOME=" + homeInside, "LANG=C.UTF-8", "TMPDIR=/tmp", "TERM=dumb", "USER=agent"}
	if a.trace != "" {
		p.Env = append(p.Env, "TRACEPARENT="+a.trace)
	}
	for _, c := range a.cfg.Caches {
		p.Binds = append(p.Binds, sandbox.Bind{Host: c.Path, Inside: cachesInside + "/" + c.Name})
		p.Env = append(p.Env, c.Env...)
	}
	if c.outward {
		a.lead(&p)
	}
	return p
}

// traceForm is a W3C trace context: numbers alone, whoever wrote it.
var traceForm = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceContext lets nothing else into a sandbox's environment.
func traceContext(s string) string {
	if traceForm.MatchString(s) {
		return s
	}
	return ""
}

// tidyHome empties the home of the attempt when it has outgrown the disk limit,
// which the sandbox watches for the workspace alone, or when it fills a volume.
func (a *attempt) tidyHome() error {
	if a.volume != nil {
		if !a.volume.Full() {
			return nil
		}
		a.cfg.Log.Warn("the attempt's home is emptied: no space is left beside it")
		return a.emptyHome()
	}
	var used int64
	err := filepath.WalkDir(a.cfg.homeDir(), func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				used += st.Size()
			}
		}
		return nil
	})
	if err != nil || used <= a.limits.attempt.DiskBytes {
		return err
	}
	a.cfg.Log.Warn("the attempt's home is emptied: it is larger than the disk limit", "bytes", used)
	return a.makeHome()
}

// judge turns an exit into the result that the model sees.
func (a *attempt) judge(callID string, c command, exit sandbox.Exit, heard *capture) *runtimev1.ToolResult {
	text, truncated := heard.text()
	r := &runtimev1.ToolResult{CallId: callID, Status: runtimev1.ResultStatus_RESULT_STATUS_FAILED, Truncated: truncated}
	lim := a.limits.attempt
	switch {
	case exit.Timeout:
		r.Code, text = string(protocol.CodeDeadlineExceeded), note(text, fmt.Sprintf("stopped after %s", c.timeout))
	case exit.OutOfMemory:
		r.Code, text = "out_of_memory", note(text, fmt.Sprintf("killed: more than %d MiB of memory", lim.MemoryBytes>>20))
	case exit.TooManyPIDs:
		r.Code, text = "too_many_processes", note(text, fmt.Sprintf("killed or refused: more than %d processes", lim.PIDs))
	case exit.OutputLimit:
		r.Code, text = "output_limit", note(text, fmt.Sprintf("killed: more than %d bytes of output", lim.OutputBytes))
	case exit.DiskLimit:
		r.Code, text = "disk_limit", note(text, fmt.Sprintf("no space left: files may have %d MiB, home and workspace together", lim.DiskBytes>>20))
	case exit.Killed || exit.Signal != "":
		r.Code, text = "killed", note(text, "killed: "+exit.Signal)
	case exit.Code != 0:
		r.Code, text = "exit_status", note(text, fmt.Sprintf("exit status %d", exit.Code))
	default:
		r.Status = runtimev1.ResultStatus_RESULT_STATUS_OK
	}
	if text == "" {
		text = "(no output)"
	}
	r.Text = text
	return r
}

// note adds a line of ours behind a process's own words.
func note(text, ours string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + "[" + ours + "]"
}

func refused(call *runtimev1.ToolCall, code protocol.Code, why string) *runtimev1.ToolResult {
	return &runtimev1.ToolResult{CallId: call.GetId(), Status: runtimev1.ResultStatus_RESULT_STATUS_FAILED, Code: string(code), Text: why}
}
