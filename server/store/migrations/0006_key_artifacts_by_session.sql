-- The same bytes may come from several sessions of one principal: two runs of one
-- task make the same patch. Each session has its own row; an upload that no
-- session uses yet has the empty one.
CREATE TABLE artifacts_of_sessions (
    principal  TEXT NOT NULL,
    digest     TEXT NOT NULL,
    session    TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    turn       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    size       BIGINT NOT NULL CHECK (size >= 0),
    created_at BIGINT NOT NULL,
    PRIMARY KEY (principal, digest, session),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);

INSERT INTO artifacts_of_sessions (principal, digest, session, tenant, turn, kind, size, created_at)
    SELECT principal, digest, session, tenant, turn, kind, size, created_at FROM artifacts;

DROP TABLE artifacts;
ALTER TABLE artifacts_of_sessions RENAME TO artifacts;

CREATE INDEX artifacts_by_session ON artifacts (session, digest) WHERE session <> '';
CREATE INDEX artifacts_by_digest ON artifacts (digest);
