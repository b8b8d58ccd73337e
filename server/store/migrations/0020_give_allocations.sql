-- The job of another scheduler that starts the supervisor of an attempt's present offer
-- (empty: the runner does), how many such offers there were, and when the job was asked
-- for, which happens once (zero: not yet).
ALTER TABLE attempts ADD COLUMN allocation TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN allocations BIGINT NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN allocation_asked_at BIGINT NOT NULL DEFAULT 0;

-- Those that have not ended.
CREATE INDEX attempts_allocated ON attempts (queued_at, id)
    WHERE allocation <> '' AND state IN ('QUEUED', 'OFFERED', 'CLAIMED', 'RUNNING', 'SUSPECT');
