-- What was used on a day of UTC. The last letter of the session spreads one
-- principal's turns over several rows, so that they do not wait for each other.
CREATE TABLE usage_days (
    tenant    TEXT NOT NULL,
    day       BIGINT NOT NULL,
    principal TEXT NOT NULL,
    agent     TEXT NOT NULL,
    part      TEXT NOT NULL,
    tokens    BIGINT NOT NULL CHECK (tokens >= 0),
    cost      BIGINT NOT NULL CHECK (cost >= 0),
    PRIMARY KEY (tenant, day, principal, agent, part),
    FOREIGN KEY (tenant, principal) REFERENCES principals (tenant, id)
);

CREATE INDEX usage_by_day ON usage_days (day);
