-- Servers that share this store. beat grows with each sign of life; others judge
-- by their own clocks how long it has not. boot is the process: a second one
-- under the same name takes the row over.
CREATE TABLE replicas (
    id         TEXT PRIMARY KEY,
    boot       TEXT NOT NULL,
    beat       BIGINT NOT NULL CHECK (beat >= 1),
    blobs      TEXT NOT NULL,
    started_at BIGINT NOT NULL
);

-- Which replica runs the ticks that one alone should run, under a fence.
CREATE TABLE leads (
    name     TEXT PRIMARY KEY,
    replica  TEXT NOT NULL,
    fence    BIGINT NOT NULL CHECK (fence >= 1),
    taken_at BIGINT NOT NULL
);

-- The root's words over the signing keys of all replicas: any one's feed carries
-- them to a broker. They are public.
CREATE TABLE signing_statements (
    jws      TEXT PRIMARY KEY,
    replica  TEXT NOT NULL,
    ends_at  BIGINT NOT NULL
);

CREATE INDEX signing_statements_by_end ON signing_statements (ends_at);
