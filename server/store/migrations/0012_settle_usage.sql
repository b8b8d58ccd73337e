-- What the broker counted of each slice, and whether that of a turn is final.
ALTER TABLE slices ADD COLUMN input_tokens BIGINT NOT NULL DEFAULT 0 CHECK (input_tokens >= 0);
ALTER TABLE slices ADD COLUMN output_tokens BIGINT NOT NULL DEFAULT 0 CHECK (output_tokens >= 0);
ALTER TABLE slices ADD COLUMN model_calls BIGINT NOT NULL DEFAULT 0 CHECK (model_calls >= 0);
ALTER TABLE turns ADD COLUMN model_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN usage_settled_at BIGINT NOT NULL DEFAULT 0;
UPDATE turns SET usage_settled_at = ended_at
    WHERE ended_at <> 0 AND NOT EXISTS (SELECT 1 FROM slices l WHERE l.turn = turns.id AND l.closed_at = 0);
