-- The ledger: runs of sessions' events, sealed as the leaves of one Merkle tree a
-- tenant. sealed_seq is how far a session's events are sealed.
ALTER TABLE sessions ADD COLUMN sealed_seq BIGINT NOT NULL DEFAULT 0;

CREATE INDEX sessions_unsealed ON sessions (tenant, id) WHERE last_seq > sealed_seq;

CREATE TABLE ledger_segments (
    tenant    TEXT NOT NULL REFERENCES tenants (id),
    n         BIGINT NOT NULL CHECK (n >= 0),
    session   TEXT NOT NULL REFERENCES sessions (id),
    from_seq  BIGINT NOT NULL CHECK (from_seq >= 1),
    to_seq    BIGINT NOT NULL CHECK (to_seq >= from_seq),
    hash      {blob} NOT NULL,
    sealed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, n)
);

CREATE UNIQUE INDEX ledger_segments_by_session ON ledger_segments (session, from_seq);

-- Nodes of the tree, by their index in the transparent log's order.
CREATE TABLE ledger_hashes (
    tenant TEXT NOT NULL REFERENCES tenants (id),
    i      BIGINT NOT NULL CHECK (i >= 0),
    hash   {blob} NOT NULL,
    PRIMARY KEY (tenant, i)
);

-- The tree's size and root now, and the newest head that a broker signed.
CREATE TABLE ledger_heads (
    tenant      TEXT PRIMARY KEY REFERENCES tenants (id),
    size        BIGINT NOT NULL CHECK (size >= 1),
    root        {blob} NOT NULL,
    at          BIGINT NOT NULL,
    signed_size BIGINT NOT NULL,
    receipt     TEXT NOT NULL,
    signed_at   BIGINT NOT NULL
);
