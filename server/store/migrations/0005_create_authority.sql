CREATE TABLE grants (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    principal   TEXT NOT NULL,
    agent       TEXT NOT NULL,
    credentials TEXT NOT NULL,
    sealed      {blob} NOT NULL,
    created_at  BIGINT NOT NULL,
    revoked_at  BIGINT NOT NULL,
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);

CREATE INDEX grants_by_principal ON grants (principal, agent, created_at);

-- One row a bounded thing: a new floor takes the old one's place at a new seq.
CREATE TABLE floors (
    seq        BIGINT PRIMARY KEY,
    kind       BIGINT NOT NULL,
    id         TEXT NOT NULL,
    minimum    BIGINT NOT NULL,
    at         BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    UNIQUE (kind, id)
);

CREATE INDEX floors_by_expiry ON floors (expires_at) WHERE expires_at > 0;

CREATE TABLE slices (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL REFERENCES tenants (id),
    turn        TEXT NOT NULL REFERENCES turns (id),
    broker_boot TEXT NOT NULL,
    ceiling     BIGINT NOT NULL CHECK (ceiling >= 0),
    drawn       BIGINT NOT NULL CHECK (drawn >= 0),
    closed_at   BIGINT NOT NULL
);

CREATE INDEX slices_open ON slices (id) WHERE closed_at = 0;
CREATE INDEX slices_by_turn ON slices (turn);

CREATE TABLE cleanups (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL REFERENCES tenants (id),
    kind       TEXT NOT NULL,
    subject    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    tries      BIGINT NOT NULL,
    next_at    BIGINT NOT NULL,
    done_at    BIGINT NOT NULL,
    evidence   TEXT NOT NULL
);

CREATE INDEX cleanups_due ON cleanups (next_at, id) WHERE done_at = 0;

CREATE TABLE artifacts (
    principal  TEXT NOT NULL,
    digest     TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    session    TEXT NOT NULL,
    turn       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    size       BIGINT NOT NULL CHECK (size >= 0),
    created_at BIGINT NOT NULL,
    PRIMARY KEY (principal, digest),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);

CREATE INDEX artifacts_by_session ON artifacts (session) WHERE session <> '';
CREATE INDEX artifacts_by_digest ON artifacts (digest);
