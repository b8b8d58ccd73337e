-- Why the broker does not sign the newest head of a ledger; empty: it does.
ALTER TABLE ledger_heads ADD COLUMN refused TEXT NOT NULL DEFAULT '';
