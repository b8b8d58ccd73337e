-- The renewal of a grant's secret part that is under way, since when, when the last
-- one was stored, and the broker's signed receipt over it; empty or zero: none.
ALTER TABLE grants ADD COLUMN rotation TEXT NOT NULL DEFAULT '';
ALTER TABLE grants ADD COLUMN rotation_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE grants ADD COLUMN rotated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE grants ADD COLUMN rotation_receipt TEXT NOT NULL DEFAULT '';

-- Those that were renewed between two moments.
CREATE INDEX grants_rotated_at ON grants (rotated_at, id) WHERE rotated_at > 0;
