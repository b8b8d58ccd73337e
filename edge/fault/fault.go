// Package fault names the steps of the product at which a test may stop a
// process. In a normal build Here does nothing; built with the tag "faults", the
// process that reaches the label of BIVOUAC_FAULT records label and pid in
// BIVOUAC_FAULT_FILE, once, and waits to be killed. "label@3" means the third
// time that a process gets there. So a kill hits exactly one step of one procedure.
package fault

// Label of a step, "<process>.<noun>.<step>".
type Label string

// Labels of the two main turns, in order of their appearance.
const (
	ServerTurnActivated    Label = "server.turn.activated"
	ServerModelAnswered    Label = "server.model.answered"    // answer in memory, not committed
	ServerIntentCommitted  Label = "server.action.intent"     // INV-4: intent durable, nothing sent
	ServerOutcomeReceived  Label = "server.action.outcome"    // outcome in memory, not committed
	ServerApprovalConsumed Label = "server.approval.consumed" // new action durable, nothing sent
	ServerClaimCommitted   Label = "server.attempt.claimed"   // claim durable, not answered
	BrokerCallLogged       Label = "broker.call.logged"       // logged as sent, not sent
	BrokerCallAnswered     Label = "broker.call.answered"     // upstream answered, not logged
	BrokerModelStreaming   Label = "broker.model.streaming"   // first byte relayed
	EdgeClaimJournalled    Label = "edge.claim.journalled"
	EdgeEffectIntent       Label = "edge.effect.intent" // intent journalled, no effect yet
	EdgeEffectDone         Label = "edge.effect.done"   // effect done, result not journalled
	EdgeResultJournalled   Label = "edge.result.journalled"
	SuperviseBegun         Label = "supervise.work.begun"
	SuperviseExecStarted   Label = "supervise.exec.started"
	SuperviseExecDone      Label = "supervise.exec.done"
	SuperviseResult        Label = "supervise.result.journalled"
	WorkerModelAnswered    Label = "worker.model.answered"
	WorkerToolDone         Label = "worker.tool.done"
)
