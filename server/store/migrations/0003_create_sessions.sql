CREATE TABLE sessions (
    id              TEXT PRIMARY KEY,
    tenant          TEXT NOT NULL,
    principal       TEXT NOT NULL,
    instance        TEXT NOT NULL REFERENCES instances (id),
    generation      BIGINT NOT NULL,
    agent           TEXT NOT NULL,
    agent_digest    TEXT NOT NULL,
    machine         TEXT NOT NULL DEFAULT 'session' CHECK (machine = 'session'),
    prior_state     TEXT NOT NULL,
    state           TEXT NOT NULL,
    data_boundary   TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    last_active_at  BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL,
    idle_ttl        BIGINT NOT NULL,
    due_at          BIGINT NOT NULL,
    idempotency_key TEXT NOT NULL,
    last_seq        BIGINT NOT NULL DEFAULT 0,
    last_hash       {blob} NOT NULL,
    UNIQUE (id, tenant, principal),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

CREATE UNIQUE INDEX sessions_by_key ON sessions (principal, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX sessions_by_principal ON sessions (principal, created_at, id);
CREATE INDEX sessions_by_creation ON sessions (created_at, id);
CREATE INDEX sessions_due ON sessions (due_at, id) WHERE state = 'OPEN' AND due_at > 0;
CREATE INDEX sessions_closing ON sessions (last_active_at, id) WHERE state = 'CLOSING';

-- Snapshots are stored once by their own digest: most turns of an agent share one.
CREATE TABLE snapshots (
    digest TEXT PRIMARY KEY,
    body   {blob} NOT NULL
);

CREATE TABLE turns (
    id                  TEXT PRIMARY KEY,
    session             TEXT NOT NULL,
    tenant              TEXT NOT NULL,
    principal           TEXT NOT NULL,
    n                   BIGINT NOT NULL CHECK (n >= 1),
    message_id          TEXT NOT NULL,
    message_digest      TEXT NOT NULL,
    prompt              TEXT NOT NULL,
    workspace_digest    TEXT NOT NULL,
    machine             TEXT NOT NULL DEFAULT 'turn' CHECK (machine = 'turn'),
    prior_state         TEXT NOT NULL,
    state               TEXT NOT NULL,
    reason              TEXT NOT NULL,
    message             TEXT NOT NULL,
    answer              TEXT NOT NULL,
    placement           TEXT NOT NULL,
    queued_at           BIGINT NOT NULL,
    queue_deadline      BIGINT NOT NULL,
    activated_at        BIGINT NOT NULL,
    deadline            BIGINT NOT NULL,
    ended_at            BIGINT NOT NULL,
    cancel_requested_at BIGINT NOT NULL,
    reconcile_deadline  BIGINT NOT NULL,
    snapshot            TEXT NOT NULL,
    snapshot_digest     TEXT NOT NULL,
    owner               TEXT NOT NULL,
    owner_fence         BIGINT NOT NULL,
    owner_expires_at    BIGINT NOT NULL,
    loop                {blob} NOT NULL,
    patch_digest        TEXT NOT NULL,
    model_call          TEXT NOT NULL,
    attempt             TEXT NOT NULL,
    attempts            BIGINT NOT NULL,
    input_tokens        BIGINT NOT NULL,
    output_tokens       BIGINT NOT NULL,
    cost_micro_usd      BIGINT NOT NULL,
    slice               TEXT NOT NULL,
    trace_parent        TEXT NOT NULL,
    UNIQUE (session, n),
    UNIQUE (session, message_id), -- INV-15
    FOREIGN KEY (session, tenant, principal) REFERENCES sessions (id, tenant, principal),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

-- INV-1: at most one active turn a session.
CREATE UNIQUE INDEX turns_active ON turns (session)
    WHERE state IN ('RECEIVED', 'RUNNING_MODEL', 'WAITING_ACTION', 'WAITING_APPROVAL', 'RUNNING_ACTION', 'WAITING_RECONCILIATION');
CREATE INDEX turns_owned ON turns (owner, owner_expires_at)
    WHERE state IN ('RECEIVED', 'RUNNING_MODEL', 'WAITING_ACTION', 'WAITING_APPROVAL', 'RUNNING_ACTION', 'WAITING_RECONCILIATION');
CREATE INDEX turns_queued ON turns (session, n) WHERE state = 'QUEUED';
CREATE INDEX turns_queued_by_principal ON turns (tenant, principal) WHERE state = 'QUEUED';
CREATE INDEX turns_queue_deadline ON turns (queue_deadline, id) WHERE state = 'QUEUED' AND queue_deadline > 0;
CREATE INDEX turns_by_principal ON turns (principal, queued_at, n, id);

CREATE TABLE actions (
    id               TEXT PRIMARY KEY,
    turn             TEXT NOT NULL REFERENCES turns (id),
    session          TEXT NOT NULL,
    tenant           TEXT NOT NULL,
    principal        TEXT NOT NULL,
    call_id          TEXT NOT NULL,
    tool             TEXT NOT NULL,
    alias            TEXT NOT NULL,
    placement        BIGINT NOT NULL,
    effect           BIGINT NOT NULL,
    recovery         BIGINT NOT NULL,
    machine          TEXT NOT NULL DEFAULT 'action' CHECK (machine = 'action'),
    prior_state      TEXT NOT NULL,
    state            TEXT NOT NULL,
    arguments        TEXT NOT NULL,
    arguments_digest TEXT NOT NULL,
    destination      TEXT NOT NULL,
    resource_key     TEXT NOT NULL,
    idempotency_key  TEXT NOT NULL,
    pre_image_digest TEXT NOT NULL,
    fence            BIGINT NOT NULL,
    attempt          TEXT NOT NULL,
    approval         TEXT NOT NULL,
    superseded_by    TEXT NOT NULL,
    intent_at        BIGINT NOT NULL,
    dispatched_at    BIGINT NOT NULL,
    outcome_at       BIGINT NOT NULL,
    result           {blob} NOT NULL,
    code             TEXT NOT NULL,
    evidence         TEXT NOT NULL,
    resolution       TEXT NOT NULL,
    resolution_note  TEXT NOT NULL,
    resolved_by      TEXT NOT NULL,
    resolved_at      BIGINT NOT NULL,
    FOREIGN KEY (session, tenant, principal) REFERENCES sessions (id, tenant, principal),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

CREATE INDEX actions_by_turn ON actions (turn, intent_at, id);
CREATE INDEX actions_not_ended ON actions (state, intent_at, id)
    WHERE state IN ('INTENDED', 'AWAITING_APPROVAL', 'DISPATCHED', 'RECONCILING');
CREATE INDEX actions_unresolved ON actions (principal, resource_key) WHERE state = 'UNKNOWN' AND resolution = '';
CREATE INDEX actions_unknown ON actions (principal, outcome_at) WHERE state = 'UNKNOWN';

CREATE TABLE approvals (
    id          TEXT PRIMARY KEY,
    action      TEXT NOT NULL REFERENCES actions (id),
    turn        TEXT NOT NULL REFERENCES turns (id),
    session     TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    principal   TEXT NOT NULL,
    machine     TEXT NOT NULL DEFAULT 'approval' CHECK (machine = 'approval'),
    prior_state TEXT NOT NULL,
    state       TEXT NOT NULL,
    tool        TEXT NOT NULL,
    destination TEXT NOT NULL,
    arguments   TEXT NOT NULL,
    digest      TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    decided_at  BIGINT NOT NULL,
    decided_by  TEXT NOT NULL,
    reason      TEXT NOT NULL,
    consumed_by TEXT NOT NULL,
    consumed_at BIGINT NOT NULL,
    CHECK ((state = 'CONSUMED') = (consumed_by <> '')),
    FOREIGN KEY (session, tenant, principal) REFERENCES sessions (id, tenant, principal),
    FOREIGN KEY (machine, prior_state, state) REFERENCES legal_steps (machine, prior, next)
);

-- INV-6: one pending approval a subject, and one action a consumed approval.
CREATE UNIQUE INDEX approvals_pending ON approvals (action) WHERE state = 'PENDING';
CREATE UNIQUE INDEX approvals_consumed ON approvals (consumed_by) WHERE consumed_by <> '';
CREATE INDEX approvals_by_turn ON approvals (turn, created_at, id);
CREATE INDEX approvals_by_principal ON approvals (principal, created_at, id);
CREATE INDEX approvals_open ON approvals (expires_at) WHERE state IN ('PENDING', 'APPROVED');

-- INV-8: the hash covers the previous hash and the stored bytes.
CREATE TABLE events (
    session   TEXT NOT NULL REFERENCES sessions (id),
    seq       BIGINT NOT NULL CHECK (seq >= 1),
    turn      TEXT NOT NULL,
    bytes     {blob} NOT NULL,
    prev_hash {blob} NOT NULL,
    hash      {blob} NOT NULL,
    PRIMARY KEY (session, seq)
);

CREATE INDEX events_by_turn ON events (turn, seq);

-- Payloads apart from the chain: it binds SHA-256(salt || payload) only, so that
-- erasing both keeps it whole.
CREATE TABLE event_payloads (
    session   TEXT NOT NULL,
    seq       BIGINT NOT NULL,
    salt      {blob} NOT NULL,
    payload   TEXT NOT NULL,
    erased_at BIGINT NOT NULL,
    PRIMARY KEY (session, seq),
    FOREIGN KEY (session, seq) REFERENCES events (session, seq)
);

CREATE TABLE projections (
    session  TEXT NOT NULL REFERENCES sessions (id),
    n        BIGINT NOT NULL,
    turn     TEXT NOT NULL REFERENCES turns (id),
    messages {blob} NOT NULL,
    PRIMARY KEY (session, n)
);
