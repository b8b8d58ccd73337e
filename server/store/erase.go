package store

import "bivouac/edge/protocol"

var (
	eraseEventPayloads = define(`UPDATE event_payloads SET salt = $3, payload = '', erased_at = $2 WHERE session = $1 AND erased_at = 0`)
	eraseTurns         = define(`UPDATE turns SET prompt = $2, answer = CASE WHEN answer = '' THEN '' ELSE $2 END, message = '', loop = $3
		WHERE session = $1`)
	eraseActions = define(`UPDATE actions SET arguments = $2, result = $3, evidence = ''
		WHERE turn IN (SELECT t.id FROM turns t WHERE t.session = $1)`)
	eraseAsked   = define(`UPDATE approvals SET arguments = $2 WHERE turn IN (SELECT t.id FROM turns t WHERE t.session = $1)`)
	eraseRecords = define(`DELETE FROM attempt_records WHERE attempt IN (SELECT att.id FROM attempts att WHERE
		(att.subject_kind = 'agent-turn' AND att.subject_id IN (SELECT t.id FROM turns t WHERE t.session = $1)) OR
		(att.subject_kind = 'agent-action' AND att.subject_id IN (SELECT a.id FROM actions a JOIN turns t ON t.id = a.turn WHERE t.session = $1)))`)
	eraseWork = define(`UPDATE attempts SET work = $2 WHERE
		(subject_kind = 'agent-turn' AND subject_id IN (SELECT t.id FROM turns t WHERE t.session = $1)) OR
		(subject_kind = 'agent-action' AND subject_id IN (SELECT a.id FROM actions a JOIN turns t ON t.id = a.turn WHERE t.session = $1))`)
	eraseFiles = define(`DELETE FROM artifacts WHERE session = $1 AND session <> ''`)
	// An upload has a row without a session as well; another session may stand on it.
	eraseUploads = define(`DELETE FROM artifacts WHERE principal = (SELECT s.principal FROM sessions s WHERE s.id = $1) AND session = ''
		AND digest IN (SELECT t.workspace_digest FROM turns t WHERE t.session = $1)
		AND NOT EXISTS (SELECT 1 FROM artifacts o WHERE o.digest = artifacts.digest AND o.principal = artifacts.principal AND o.session <> '')`)
	eraseProjection = define(`DELETE FROM projections WHERE session = $1`)
	unfinished      = define(`SELECT COUNT(*) FROM turns t WHERE t.session = $1 AND (t.state = 'QUEUED' OR t.state IN ` + activeStates + `)`)
)

// ErasePayloads takes the words out of a session and leaves fixed tombstones:
// event payloads with their salts, prompts, answers, arguments, results, journal
// records, the right to read its files, and the projection, which is rebuilt from
// what is left. States, ids, digests and the event chain stay, and the chain still
// verifies. INV-8.
func (tx *Tx) ErasePayloads(s protocol.SessionID) error {
	if _, err := tx.locked(s); err != nil {
		return err
	}
	n, err := first(tx, number, unfinished, []any{s})
	if err != nil {
		return err
	}
	if n > 0 {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"session %s has %d turns that have not ended: cancel them with `bivouac cancel`, then erase", s, n)
	}
	nothing := []byte(nil)
	for _, step := range []struct {
		st   *statement
		args []any
	}{
		{eraseEventPayloads, []any{s, tx.Now, nothing}},
		{eraseTurns, []any{s, Tombstone, nothing}},
		{eraseAsked, []any{s, Tombstone}},
		{eraseRecords, []any{s}},
		{eraseWork, []any{s, nothing}},
		{eraseActions, []any{s, Tombstone, nothing}},
		{eraseFiles, []any{s}},
		{eraseUploads, []any{s}},
		{eraseProjection, []any{s}},
	} {
		if _, err := tx.exec(step.st, step.args...); err != nil {
			return err
		}
	}
	tx.touch(TopicEvents)
	tx.touch(EventsOf(s))
	return nil
}
