-- The broker's later signed receipt of a revocation whose first one did not show every
-- layer clear, and when it was kept; empty or zero: none. What was signed first stays.
ALTER TABLE grants ADD COLUMN proof TEXT NOT NULL DEFAULT '';
ALTER TABLE grants ADD COLUMN proven_at BIGINT NOT NULL DEFAULT 0;
