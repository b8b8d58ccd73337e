package worker

import (
	"context"
	"encoding/json"
	"strings"

	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
)

// inspect runs the inspector of a call that an earlier attempt may have begun, in
// this attempt's sandbox, and returns the call's result; nil when it is to be made.
func (d *driver) inspect(ctx context.Context, c loop.CallTool) (*runtimev1.ToolResult, error) {
	arguments, err := json.Marshal(map[string]string{"command": inspection(c)})
	if err != nil {
		return nil, err
	}
	look := &runtimev1.ToolCall{Id: c.Call.GetId(), Alias: c.Call.GetAlias(), Arguments: string(arguments)}
	said, err := d.host.Tool(ctx, look, c.Tool, nil)
	if err != nil {
		return nil, err
	}
	r, again := loop.Inspected(c.Call, seen(said), said.GetText())
	if again {
		return nil, nil
	}
	return r, nil
}

// inspection is the inspector as one command line, with the call that it asks about.
func inspection(c loop.CallTool) string {
	quoted := "'" + strings.ReplaceAll(c.Call.GetArguments(), "'", `'\''`) + "'"
	return "BIVOUAC_CALL=" + quoted + "\nexport BIVOUAC_CALL\n" + c.Tool.GetInspector()
}

// notThere is how the supervisor says that a command ended with 10: its own last words.
// The look-up of a command on a host has the same status. 1 would not do: a file that is
// missing, a pipe that broke and a grep that could not read end with it as well. INV-5.
const notThere = "[exit status 10]"

// seen reads how an inspector ended. Anything but its two answers, 0 and 10, says nothing.
func seen(r *runtimev1.ToolResult) loop.Seen {
	switch {
	case r.GetStatus() == runtimev1.ResultStatus_RESULT_STATUS_OK:
		return loop.SeenDone
	case r.GetCode() == "exit_status" && strings.HasSuffix(r.GetText(), notThere):
		return loop.SeenAbsent
	}
	return loop.SeenNothing
}
