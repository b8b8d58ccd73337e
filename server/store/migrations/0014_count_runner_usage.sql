-- What turns used on a machine on a day of UTC.
CREATE TABLE runner_days (
    tenant TEXT NOT NULL,
    day    BIGINT NOT NULL,
    runner TEXT NOT NULL,
    tokens BIGINT NOT NULL CHECK (tokens >= 0),
    cost   BIGINT NOT NULL CHECK (cost >= 0),
    PRIMARY KEY (tenant, day, runner),
    FOREIGN KEY (tenant, runner) REFERENCES runners (tenant, id)
);

CREATE INDEX runner_days_by_day ON runner_days (day);
