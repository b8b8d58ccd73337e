CREATE TABLE runners (
    id           TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL REFERENCES tenants (id),
    owner        TEXT NOT NULL,
    name         TEXT NOT NULL,
    thumbprint   TEXT NOT NULL UNIQUE,
    public_key   {blob} NOT NULL,
    machine      TEXT NOT NULL DEFAULT 'runner' CHECK (machine = 'runner'),
    prior_state  TEXT NOT NULL,
    state        TEXT NOT NULL,
    facts        TEXT NOT NULL,
    enrolled_at  BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL,
    mailbox_seq  BIGINT NOT NULL DEFAULT 0,
    acked_seq    BIGINT NOT NULL DEFAULT 0,
    UNIQUE (tenant, id),
    FOREIGN KEY (tenant, owner) REFERENCES principals (tenant, id),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

CREATE INDEX runners_by_owner ON runners (owner);

CREATE TABLE bindings (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    principal  TEXT NOT NULL,
    runner     TEXT NOT NULL,
    actions    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT NOT NULL,
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id),
    FOREIGN KEY (tenant, runner) REFERENCES runners (tenant, id)
);

CREATE UNIQUE INDEX bindings_in_force ON bindings (runner, principal) WHERE removed_at = 0;
CREATE INDEX bindings_by_principal ON bindings (principal) WHERE removed_at = 0;

CREATE TABLE join_codes (
    hash       {blob} PRIMARY KEY,
    tenant     TEXT NOT NULL,
    principal  TEXT NOT NULL,
    name       TEXT NOT NULL,
    actions    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL,
    runner     TEXT NOT NULL,
    thumbprint TEXT NOT NULL,
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);

CREATE TABLE connections (
    runner     TEXT PRIMARY KEY REFERENCES runners (id),
    epoch      BIGINT NOT NULL CHECK (epoch >= 1),
    replica    TEXT NOT NULL,
    boot_nonce TEXT NOT NULL,
    transport  TEXT NOT NULL,
    taken_at   BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE mailbox (
    runner     TEXT NOT NULL REFERENCES runners (id),
    seq        BIGINT NOT NULL CHECK (seq >= 1),
    attempt    TEXT NOT NULL,
    body       {blob} NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (runner, seq)
);

CREATE TABLE attempts (
    id                 TEXT PRIMARY KEY,
    tenant             TEXT NOT NULL,
    principal          TEXT NOT NULL,
    subject_kind       TEXT NOT NULL,
    subject_id         TEXT NOT NULL,
    number             BIGINT NOT NULL,
    machine            TEXT NOT NULL DEFAULT 'attempt' CHECK (machine = 'attempt'),
    prior_state        TEXT NOT NULL,
    state              TEXT NOT NULL,
    requirements       TEXT NOT NULL,
    policy_digest      TEXT NOT NULL,
    work               {blob} NOT NULL,
    spec_digest        TEXT NOT NULL,
    runner             TEXT NOT NULL,
    boot_nonce         TEXT NOT NULL,
    fence              BIGINT NOT NULL,
    authority_ttl      BIGINT NOT NULL,
    retention          BIGINT NOT NULL,
    queued_at          BIGINT NOT NULL,
    placement_deadline BIGINT NOT NULL,
    offered_at         BIGINT NOT NULL,
    claimed_at         BIGINT NOT NULL,
    started_at         BIGINT NOT NULL,
    renewed_at         BIGINT NOT NULL,
    deadline           BIGINT NOT NULL,
    ended_at           BIGINT NOT NULL,
    stop_at            BIGINT NOT NULL,
    stop_reason        TEXT NOT NULL,
    accepted_seq       BIGINT NOT NULL,
    reason             TEXT NOT NULL,
    message            TEXT NOT NULL,
    defer_reason       TEXT NOT NULL,
    trace_parent       TEXT NOT NULL,
    idempotency_key    TEXT NOT NULL,
    UNIQUE (subject_kind, subject_id, number),
    -- INV-14: what a supervisor holds names the claim that won.
    CHECK (state NOT IN ('CLAIMED', 'RUNNING', 'SUSPECT') OR (runner <> '' AND boot_nonce <> '' AND fence > 0)),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

CREATE INDEX attempts_not_ended ON attempts (state, queued_at, id)
    WHERE state IN ('QUEUED', 'OFFERED', 'CLAIMED', 'RUNNING', 'SUSPECT');
CREATE INDEX attempts_by_runner ON attempts (runner)
    WHERE state IN ('QUEUED', 'OFFERED', 'CLAIMED', 'RUNNING', 'SUSPECT');
CREATE UNIQUE INDEX attempts_by_key ON attempts (principal, idempotency_key) WHERE idempotency_key <> '';

CREATE TABLE attempt_records (
    attempt  TEXT NOT NULL REFERENCES attempts (id),
    seq      BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    body     {blob} NOT NULL,
    fence    BIGINT NOT NULL,
    evidence BIGINT NOT NULL,
    PRIMARY KEY (attempt, seq)
);
