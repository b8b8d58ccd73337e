-- A turn is its owner's for as long as that replica lives, which replicas tells.
DROP INDEX turns_owned;
ALTER TABLE turns DROP COLUMN owner_expires_at;
CREATE INDEX turns_owned ON turns (owner)
    WHERE state IN ('RECEIVED', 'RUNNING_MODEL', 'WAITING_ACTION', 'WAITING_APPROVAL', 'RUNNING_ACTION', 'WAITING_RECONCILIATION');
