-- How many turns of a session wait. An admission reads three depths: with one
-- number a session it reads one row a session that has a queue, not one a turn.
ALTER TABLE sessions ADD COLUMN queued BIGINT NOT NULL DEFAULT 0 CHECK (queued >= 0);
UPDATE sessions SET queued = (SELECT COUNT(*) FROM turns t WHERE t.session = sessions.id AND t.state = 'QUEUED')
    WHERE id IN (SELECT t.session FROM turns t WHERE t.state = 'QUEUED');
CREATE INDEX sessions_queued ON sessions (tenant, principal, queued) WHERE queued > 0;
DROP INDEX turns_queued_by_principal;
