package policy

import (
	"encoding/json"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
)

// Machine is a runner as far as a principal may use it for device actions now:
// bound to the principal, active, and admitted by the agent. Actions are those
// that binding and owner both allow.
type Machine struct {
	Runner  protocol.RunnerID
	Name    string
	Actions []string
}

// MachineArgument is the argument that the accepted set adds to a device action
// which more than one machine offers.
const MachineArgument = "machine"

// Machines keeps those that the agent's runners list admits; an empty list
// admits every bound one.
func (a Agent) Machines(bound []Machine) []Machine {
	return slices.DeleteFunc(slices.Clone(bound), func(m Machine) bool { return !a.AdmitsRunner(m.Name, m.Runner) })
}

// AdmitsRunner reports that the agent's runners list names the runner, by name
// or id, or is empty.
func (a Agent) AdmitsRunner(name string, id protocol.RunnerID) bool {
	return len(a.Runners) == 0 || slices.Contains(a.Runners, name) || slices.Contains(a.Runners, id.String())
}

// AcceptedSet is what one turn's model is offered: the definition's tools, those
// of them that exist now, each under one alias and with one placement. A device
// action that no machine offers is left out; one that several offer gets a
// required machine argument. The set is empty rather than wider. INV-10.
func AcceptedSet(a Agent, bound []Machine) ([]*runtimev1.Tool, error) {
	machines := a.Machines(bound)
	placed := map[string]runtimev1.Placement{}
	var out []*runtimev1.Tool
	for _, t := range a.Tools {
		if at, taken := placed[t.Alias]; taken {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument,
				"agent %s offers the alias %s twice (%s and %s): rename one and apply it again", a.Name, t.Alias, at, t.Placement)
		}
		placed[t.Alias] = t.Placement
		schema := t.InputSchema
		if t.onDevice() {
			offering := offer(t.Ref, machines)
			switch {
			case len(offering) == 0:
				continue
			case len(offering) > 1:
				var err error
				if schema, err = withMachine(schema, offering); err != nil {
					return nil, err
				}
			}
		}
		if t.inSandbox() && a.Placement != "runner" {
			continue
		}
		out = append(out, &runtimev1.Tool{
			Ref: t.Ref, Alias: t.Alias, Description: t.Description, InputSchema: schema,
			OutputSchema: t.OutputSchema, Effect: t.Effect, Recovery: t.Recovery, Inspector: t.Inspector, Placement: t.Placement,
			NeedsApproval: NeedsApproval(t), Destination: t.Destination(),
		})
	}
	return out, nil
}

// offer lists the machines that allow an action. Digesting a file is part of
// writing it.
func offer(ref string, machines []Machine) []Machine {
	if ref == RefDigest {
		ref = RefWrite
	}
	return slices.DeleteFunc(slices.Clone(machines), func(m Machine) bool { return !slices.Contains(m.Actions, ref) })
}

// label is how the model names a machine: its name, or its id where two share
// the name.
func label(m Machine, among []Machine) string {
	for _, o := range among {
		if o.Name == m.Name && o.Runner != m.Runner {
			return m.Runner.String()
		}
	}
	return m.Name
}

func withMachine(schema string, machines []Machine) (string, error) {
	var s map[string]any
	if err := json.Unmarshal([]byte(schema), &s); err != nil {
		return "", err
	}
	enum := make([]string, len(machines))
	for i, m := range machines {
		enum[i] = label(m, machines)
	}
	slices.Sort(enum)
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	properties[MachineArgument] = map[string]any{
		"type": "string", "enum": enum, "description": "The machine on which it is done.",
	}
	s["required"] = append(required, MachineArgument)
	b, err := canonical.Marshal(s)
	return string(b), err
}

// ChooseMachine finds the one machine that a device action goes to, and the
// canonical arguments without the machine argument: those are what the runner
// gets and what an approval binds, with the runner as destination. Nothing falls
// back to another machine. INV-11.
func ChooseMachine(a Agent, ref, arguments string, bound []Machine) (Machine, string, error) {
	offering := offer(ref, a.Machines(bound))
	var args map[string]json.RawMessage
	if err := json.Unmarshal([]byte(arguments), &args); err != nil {
		return Machine{}, "", protocol.Errorf(protocol.CodeInvalidArgument, "arguments of %s: %w", ref, err)
	}
	wanted := ""
	if raw, ok := args[MachineArgument]; ok {
		if err := json.Unmarshal(raw, &wanted); err != nil {
			return Machine{}, "", protocol.Errorf(protocol.CodeInvalidArgument, "argument %s of %s: %w", MachineArgument, ref, err)
		}
		delete(args, MachineArgument)
	}
	m, err := choose(ref, wanted, offering)
	if err != nil {
		return Machine{}, "", err
	}
	b, err := canonical.Marshal(args)
	return m, string(b), err
}

func choose(ref, wanted string, offering []Machine) (Machine, error) {
	if wanted == "" && len(offering) == 1 {
		return offering[0], nil
	}
	for _, m := range offering {
		if wanted != "" && (label(m, offering) == wanted || m.Runner.String() == wanted) {
			return m, nil
		}
	}
	switch {
	case len(offering) == 0:
		return Machine{}, protocol.Errorf(protocol.CodePolicyDenied,
			"no machine of yours allows %s: `bivouac edge invite` adds one, or its owner allows the action in edge.hcl", ref)
	case wanted == "":
		return Machine{}, protocol.Errorf(protocol.CodeInvalidArgument,
			"%d machines allow %s: the argument %s must name one", len(offering), ref, MachineArgument)
	}
	return Machine{}, protocol.Errorf(protocol.CodePolicyDenied, "the machine %q does not allow %s", wanted, ref)
}
