package storetest

import (
	"errors"
	"maps"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

var (
	ownerOnly      = []role{asUser, asLoop}                                                // conversations: not even an admin
	ofTenant       = []role{asUser, asAdmin, asLoop}                                       // management rows
	withRunner     = []role{asUser, asRunner, asLoop}                                      // attempts
	adminOnly      = []role{asAdmin, asLoop}                                               // changes of the tenant
	loopOnly       = []role{asLoop}                                                        // ticks
	allOfTheir     = []role{asUser, asAdmin, asRunner, asLoop}                             // a runner: owner, itself, admin
	everyPrincipal = []role{asUser, asAdmin, asBystander, asLoop}                          // every principal of the tenant
	inTenant       = []role{asUser, asAdmin, asBystander, asRunner, asOtherRunner, asLoop} // the tenant itself
	machine        = []role{asRunner, asLoop}                                              // the machine itself
)

// probes has an entry for every method of Tx.
var probes = merge(ledgerProbes, peopleProbes, conversationProbes, actionProbes, attemptProbes, runnerProbes, authorityProbes, replicaProbes)

func merge(all ...map[string]probe) map[string]probe {
	out := map[string]probe{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

var peopleProbes = map[string]probe{
	"Caller":       {everybody: true, run: func(tx *store.Tx, x *side) (bool, error) { return true, nil }},
	"Wake":         {everybody: true, run: func(tx *store.Tx, x *side) (bool, error) { tx.Wake("a topic"); return true, nil }},
	"Unaltered":    {everybody: true, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.Unaltered()) }},
	"Epoch":        {everybody: true, run: func(tx *store.Tx, x *side) (bool, error) { return tx.Epoch() > 0, nil }},
	"EnsureTenant": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.EnsureTenant(x.Name)) }},
	"TenantKnown":  {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return tx.TenantKnown(x.Name) }},
	"Tenant":       {by: inTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Tenant(x.Tenant)) }},
	"InsertPrincipal": {by: adminOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertPrincipal(policy.Principal{ID: id[protocol.PrincipalID](), Tenant: x.Tenant, Name: "new"}))
	}},
	"PrincipalByToken": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		p, _, err := tx.PrincipalByToken(hash(x.Name + "user"))
		return p.ID == x.User, err
	}},
	"Principal":       {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Principal(x.User)) }},
	"PrincipalByName": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.PrincipalByName(x.Tenant, x.Name+"-user")) }},
	"Principals": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Principals()
		return has(all, err, func(p policy.Principal) bool { return p.ID == x.User })
	}},
	"DisablePrincipal": {by: adminOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.DisablePrincipal(x.Admin)) }},
	"PutDefinition": {by: adminOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		_, changed, err := tx.PutDefinition(policy.Definition{Tenant: x.Tenant, Name: "assistant", Digest: "other"})
		return changed, err
	}},
	"Definition": {by: everyPrincipal, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Definition(x.Tenant, "assistant", "")) }},
	"Definitions": {by: everyPrincipal, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Definitions()
		return has(all, err, func(d policy.Definition) bool { return d.Tenant == x.Tenant })
	}},
	"EnsureInstance": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.EnsureInstance(x.Tenant, x.User, "assistant"))
	}},
	"RaiseGeneration": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.RaiseGeneration(x.Instance)) }},
}

var conversationProbes = map[string]probe{
	"InsertSession": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(x.newSession(tx, id[protocol.SessionID](), "", time.Time{}))
	}},
	"Session":      {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Session(x.Session)) }},
	"SessionByKey": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.SessionByKey(x.User, "key of "+x.Name)) }},
	"Sessions": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, _, err := tx.Sessions(0, "")
		return has(all, err, func(s session.Session) bool { return s.ID == x.Session })
	}},
	"SaveSession": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveSession(session.Session{ID: x.Session, State: session.Closing}, session.Open))
	}},
	"SessionsPastExpiry": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.SessionsPastExpiry(0)
		return has(all, err, func(s session.Session) bool { return s.ID == x.Old })
	}},
	"SessionsDrained": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.SessionsDrained(0)
		return has(all, err, func(s session.Session) bool { return s.ID == x.Drained })
	}},
	"InsertTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		_, err := x.newTurn(tx, x.Session, id[protocol.TurnID]())
		return did(err)
	}},
	"Standing": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Standing(x.Session, "new")) }},
	"Admit": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		s, err := tx.Standing(x.Session, "new")
		if err != nil {
			return false, err
		}
		_, err = tx.Admit(s, session.Turn{ID: id[protocol.TurnID](), MessageID: "new", State: session.Queued, QueuedAt: tx.Now},
			session.Event{Type: session.TurnQueued})
		return did(err)
	}},
	"Pace": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		n, _, err := tx.Pace(x.Session, 1, 1)
		return n > 0, err
	}},
	"Turn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Turn(x.Done)) }},
	"TurnByMessage": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.TurnByMessage(x.Session, "message of "+x.Done.String()))
	}},
	"ActiveTurn":    {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.ActiveTurn(x.Session)) }},
	"TurnOfAttempt": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.TurnOfAttempt(x.Running)) }},
	"Turns": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		mine, _, err := tx.Turns("", 0, "")
		if found, err := has(mine, err, x.isTurn); found || err != nil {
			return found, err
		}
		ofSession, _, err := tx.Turns(x.Session, 0, "")
		return has(ofSession, err, x.isTurn)
	}},
	"QueueDepth": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		ofSession, err := tx.QueueDepth("", "", x.Session)
		if err != nil {
			return false, err
		}
		ofPrincipal, err := tx.QueueDepth(x.Tenant, x.User, "")
		return ofSession+ofPrincipal > 0, err
	}},
	"QueuePosition": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.QueuePosition(x.Next)) }},
	"Activatable": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if t, err := tx.Turn(x.Active); err == nil { // whoever may ends the active turn, so that the next one may begin
			if _, err := walk(tx, t, session.Cancelled); err != nil {
				return false, err
			}
		}
		all, err := tx.Activatable(0)
		return has(all, err, x.isTurn)
	}},
	"SaveTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveTurn(session.Turn{ID: x.Next, State: session.Cancelled}, session.Queued, 0))
	}},
	"OwnedTurns": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.OwnedTurns(x.Replica)
		return has(all, err, x.isTurn)
	}},
	"OrphanedTurns": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.OrphanedTurns(0)
		return has(all, err, x.isTurn)
	}},
	"TurnsPastDeadline": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.TurnsPastDeadline(0)
		return has(all, err, x.isTurn)
	}},
	"AppendEvents": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.AppendEvents(x.Session, session.Event{Type: session.CancelRequested}))
	}},
	"Events": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Events(x.Session, 0, 0)
		return len(all) > 0, err
	}},
	"EventsOfTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.EventsOfTurn(x.Done, 0, 0)
		return len(all) > 0, err
	}},
	"NewestEventsOfTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.NewestEventsOfTurn(x.Done, 0, 0)
		return len(all) > 0, err
	}},
	"VerifyEvents":  {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.VerifyEvents(x.Session)) }},
	"ErasePayloads": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.ErasePayloads(x.Old)) }},
	"SaveProjection": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveProjection(x.Session, x.Done, 1, []byte("x")))
	}},
	"Projection": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Projection(x.Session)
		return len(all) > 0, err
	}},
	"AcceptedPatches": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		_, patches, err := tx.AcceptedPatches(x.Session)
		return len(patches) > 0, err
	}},
}

func (x *side) isTurn(t session.Turn) bool { return t.Tenant == x.Tenant }

var actionProbes = map[string]probe{
	"InsertAction": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(x.newAction(tx, id[protocol.ActionID](), session.Intended))
	}},
	"Action": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Action(x.Lost)) }},
	"ActionsOfTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.ActionsOfTurn(x.Active)
		return len(all) > 0, err
	}},
	"ActionOfAttempt": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.ActionOfAttempt(x.Running)) }},
	"ActionsIn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.ActionsIn(0, session.Dispatched, session.ActionUnknown)
		return has(all, err, x.isAction)
	}},
	"IntentsOwned": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.IntentsOwned(x.Replica, 0)
		return has(all, err, x.isAction)
	}},
	"SaveAction": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveAction(session.Action{ID: x.Device, State: session.Succeeded, Fence: x.Fence}, session.Dispatched, x.Fence))
	}},
	"UnresolvedUnknown": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.UnresolvedUnknown(x.User, "resource of "+x.Name))
	}},
	"Unknowns": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Unknowns(false)
		return has(all, err, x.isAction)
	}},
	"ResolveUnknown": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.ResolveUnknown(x.Lost, "happened", "")) }},
	"InsertApproval": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(x.newApproval(tx, id[protocol.ApprovalID](), x.Device, tx.Now.Add(time.Minute)))
	}},
	"Approval": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Approval(x.Pending)) }},
	"Approvals": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Approvals(false)
		return has(all, err, x.isApproval)
	}},
	"ApprovalsOfTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.ApprovalsOfTurn(x.Active)
		return len(all) > 0, err
	}},
	"ApprovalsPastExpiry": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.ApprovalsPastExpiry(0)
		return has(all, err, x.isApproval)
	}},
	"SaveApproval": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveApproval(session.Approval{ID: x.Pending, State: session.ApprovalDenied}, session.ApprovalPending))
	}},
	"ConsumeApproval": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.ConsumeApproval(x.Approved, x.Agreed, digest("subject of "+x.Name)))
	}},
}

func (x *side) isAction(a session.Action) bool     { return a.Tenant == x.Tenant }
func (x *side) isApproval(a session.Approval) bool { return a.Tenant == x.Tenant }
func (x *side) isAttempt(a execution.Attempt) bool { return a.Tenant == x.Tenant }

var attemptProbes = map[string]probe{
	"InsertAttempt": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertAttempt(execution.Attempt{ID: id[protocol.AttemptID](), Tenant: x.Tenant, Principal: x.User,
			SubjectKind: execution.SubjectTurn, SubjectID: x.Active.String(), Number: 2, State: execution.AttemptQueued}))
	}},
	"Attempt": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Attempt(x.Running)) }},
	"AttemptsOfSubject": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.AttemptsOfSubject(execution.SubjectAction, x.Device.String())
		return len(all) > 0, err
	}},
	"AttemptsIn": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.AttemptsIn(0, execution.AttemptOffered, execution.AttemptClaimed)
		return has(all, err, x.isAttempt)
	}},
	"AttemptsOfRunner": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.AttemptsOfRunner(x.Runner)
		return len(all) > 0, err
	}},
	"AllocatedAttempts": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.AllocatedAttempts()
		return has(all, err, func(a execution.Attempt) bool { return a.Tenant == x.Tenant })
	}},
	"SaveAttempt": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveAttempt(execution.Attempt{ID: x.Running, State: execution.AttemptRunning, Runner: x.Runner, Fence: x.AttemptFence},
			execution.AttemptClaimed, x.AttemptFence))
	}},
	"ClaimAttempt": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.ClaimAttempt(x.Offered, x.Runner, "boot-2")) }},
	"PutRecords": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.PutRecords(x.Running, x.AttemptFence, false, []store.Record{{Seq: 2, At: tx.Now}}))
	}},
	"Records": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Records(x.Running)
		return len(all) > 0, err
	}},
}

var runnerProbes = map[string]probe{
	"InsertRunner": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertRunner(execution.Runner{ID: id[protocol.RunnerID](), Tenant: x.Tenant, Owner: x.User, Thumbprint: "new", State: execution.RunnerActive}))
	}},
	"Runner": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Runner(x.Runner)) }},
	"RunnerByThumbprint": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.RunnerByThumbprint("key of " + x.Runner.String()))
	}},
	"RunnerOfWorkload": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.RunnerOfWorkload("node of " + x.Runner.String()))
	}},
	"FreeWorkload": {by: ofTenant, knows: asRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		if err := tx.SaveRunner(execution.Runner{ID: x.Runner, State: execution.RunnerRevoked}, execution.RunnerActive); err != nil {
			return false, err
		}
		return did(tx.FreeWorkload(x.Runner))
	}},
	"ActiveRunners": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.ActiveRunners()
		return has(all, err, func(r execution.Runner) bool { return r.ID == x.Runner })
	}},
	"SaveRunner": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveRunner(execution.Runner{ID: x.Runner, State: execution.RunnerLeft}, execution.RunnerActive))
	}},
	"PutBinding": {by: ofTenant, knows: asRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.PutBinding(execution.Binding{Tenant: x.Tenant, Principal: x.Bystander, Runner: x.Runner}))
	}},
	"RemoveBinding": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.RemoveBinding(x.Binding)) }},
	"BindingsOf": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.BindingsOf(x.User)
		return len(all) > 0, err
	}},
	"BindingsOfRunner": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.BindingsOfRunner(x.Runner)
		return len(all) > 0, err
	}},
	"InsertJoinCode": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertJoinCode(execution.JoinCode{Hash: hash("new"), Tenant: x.Tenant, Principal: x.User}))
	}},
	"JoinCode": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.JoinCode(hash(x.Name + " code"))) }},
	"JoinCodeFor": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.JoinCodeFor(hash(x.Name+" code"), "key", x.Runner))
	}},
	"UseJoinCode": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.UseJoinCode(hash(x.Name+" code"), "key", x.Runner))
	}},
	"TakeConnection": {by: machine, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.TakeConnection(execution.Connection{Runner: x.Runner, Replica: x.Replica}, 1))
	}},
	"Connection": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Connection(x.Runner)) }},
	"Connections": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Connections()
		return has(all, err, func(c execution.Connection) bool { return c.Runner == x.Runner })
	}},
	"RenewConnections": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.RenewConnections(x.Replica, []protocol.RunnerID{x.Runner}, tx.Now.Add(time.Hour)))
	}},
	"ReleaseConnection": {by: machine, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.ReleaseConnection(x.Runner, 1)) }},
	"PutMail": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.PutMail(execution.MailboxItem{Runner: x.Runner, Attempt: x.Running, Body: []byte("stop")}))
	}},
	"Mail": {by: machine, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Mail(x.Runner, 0, 0)
		return len(all) > 0, err
	}},
	"AckMail": {by: machine, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.AckMail(x.Runner, 1)) }},
}

var authorityProbes = map[string]probe{
	"InsertGrant": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertGrant(policy.Grant{ID: id[protocol.GrantID](), Tenant: x.Tenant, Principal: x.User, Agent: "assistant"}))
	}},
	"Grant":         {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Grant(x.Grant)) }},
	"StandingGrant": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.StandingGrant(x.User, "assistant")) }},
	"GrantsInForce": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.GrantsInForce(x.User, "assistant")
		return has(all, err, func(g policy.Grant) bool { return g.ID == x.Grant })
	}},
	"Grants": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Grants(false)
		return has(all, err, func(g policy.Grant) bool { return g.ID == x.Grant })
	}},
	"RevokeGrant": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.RevokeGrant(x.Grant, "")) }},
	"BeginRotation": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.BeginRotation(x.Grant, id[protocol.CleanupID](), tx.Now))
	}},
	"KeepRotated": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		r, err := begun(tx, x)
		if err != nil {
			return false, err
		}
		return did(tx.KeepRotated(x.Grant, r, []byte("new")))
	}},
	"RenewedIn": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		r, err := begun(tx, x)
		if err == nil && r != "" {
			err = errors.Join(tx.KeepRotated(x.Grant, r, []byte("new")), tx.EndRotation(x.Grant, r, ""))
		}
		if err != nil {
			return false, err
		}
		all, err := tx.RenewedIn(time.Time{}, tx.Now)
		return has(all, err, func(g policy.Grant) bool { return g.ID == x.Grant })
	}},
	"EndRotation": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		r, err := begun(tx, x)
		if err != nil {
			return false, err
		}
		return did(tx.EndRotation(x.Grant, r, "r"))
	}},
	"KeepReceipt": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.KeepReceipt(x.Grant, "r")) }},
	"AddFloor": {by: ofTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.AddFloor(policy.Floor{Kind: policy.FloorGrant, ID: x.Grant.String(), Minimum: 1}))
	}},
	"Floors": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, _, err := tx.Floors(0, 0)
		return has(all, err, func(f policy.Floor) bool { return f.ID == x.Done.String() })
	}},
	"InsertSlice": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertSlice(policy.Slice{ID: id[protocol.SliceID](), Turn: x.Active}))
	}},
	"Slice": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Slice(x.Slice)) }},
	"SaveSlice": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveSlice(policy.Slice{ID: x.Slice, CeilingMicroUSD: 200}))
	}},
	"SlicesOfTurn": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.SlicesOfTurn(x.Active)
		return len(all) > 0, err
	}},
	"InsertCleanup": {by: everyPrincipal, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.InsertCleanup(policy.Cleanup{ID: id[protocol.CleanupID](), Tenant: x.Tenant}))
	}},
	"CleanupsDue": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.CleanupsDue(0)
		return has(all, err, func(c policy.Cleanup) bool { return c.ID == x.Cleanup })
	}},
	"Cleanup": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		c, err := tx.Cleanup(x.Cleanup)
		return c.ID == x.Cleanup, err
	}},
	"Cleanups": {by: adminOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, _, err := tx.Cleanups(0, "")
		return has(all, err, func(c policy.Cleanup) bool { return c.ID == x.Cleanup })
	}},
	"Gauges": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		g, err := tx.Gauges()
		return g.Queued > 0, err
	}},
	"AddUsage": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.AddUsage(x.Active, 1)) }},
	"Consumption": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		c, err := tx.Consumption(policy.Scope{Tenant: x.Tenant, Principal: x.User})
		return c.Queued > 0, err
	}},
	"RunnerConsumption": {by: allOfTheir, run: func(tx *store.Tx, x *side) (bool, error) {
		c, err := tx.RunnerConsumption(x.Runner)
		return c.Active+c.ActiveActions > 0, err
	}},
	"DropUsage": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if _, err := tx.DropUsage(tx.Now); err != nil {
			return false, err
		}
		if err := tx.AddUsage(x.Active, 1); err != nil {
			return false, err
		}
		n, err := tx.DropUsage(tx.Now.Add(48 * time.Hour))
		return n > 0, err
	}},
	"CleanupDebt": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		n, err := tx.CleanupDebt()
		return n > 0, err
	}},
	"SaveCleanup": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.SaveCleanup(policy.Cleanup{ID: x.Cleanup, Tries: 1}))
	}},
	"PutArtifact": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		_, err := tx.PutArtifact(policy.Artifact{Digest: digest("new"), Tenant: x.Tenant, Principal: x.User, Session: x.Session, Turn: x.Active})
		return did(err)
	}},
	"SessionArtifact": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.SessionArtifact(x.Session, x.Artifact))
	}},
	"Artifact": {by: withRunner, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Artifact(x.Artifact)) }},
}

// begun is a rotation that a loop may go on with; nobody else gets as far.
func begun(tx *store.Tx, x *side) (protocol.CleanupID, error) {
	if !tx.Caller().Internal() {
		return "", nil
	}
	g, err := tx.BeginRotation(x.Grant, id[protocol.CleanupID](), tx.Now)
	return g.Rotation, err
}
