-- Instants are microseconds since 1970 UTC, zero for "never"; durations are
-- microseconds; booleans are 0 or 1; ids are text and '' is "no id".

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);

INSERT INTO meta (name, value) VALUES ('store_epoch', 1), ('floor_seq', 0);

CREATE TABLE tenants (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

CREATE TABLE principals (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL REFERENCES tenants (id),
    name        TEXT NOT NULL,
    kind        TEXT NOT NULL,
    admin       BIGINT NOT NULL,
    operator    BIGINT NOT NULL,
    token_hash  {blob} NOT NULL,
    created_at  BIGINT NOT NULL,
    disabled_at BIGINT NOT NULL,
    UNIQUE (tenant, name),
    UNIQUE (tenant, id)
);

CREATE UNIQUE INDEX principals_by_token ON principals (token_hash) WHERE length(token_hash) > 0;

CREATE TABLE definitions (
    tenant     TEXT NOT NULL REFERENCES tenants (id),
    name       TEXT NOT NULL,
    version    BIGINT NOT NULL,
    digest     TEXT NOT NULL,
    filename   TEXT NOT NULL,
    source     {blob} NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name, version)
);

CREATE INDEX definitions_by_digest ON definitions (tenant, name, digest);

CREATE TABLE instances (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    principal  TEXT NOT NULL,
    agent      TEXT NOT NULL,
    generation BIGINT NOT NULL CHECK (generation >= 1),
    created_at BIGINT NOT NULL,
    UNIQUE (tenant, principal, agent),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);
