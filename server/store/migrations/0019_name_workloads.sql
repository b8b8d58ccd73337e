-- What another scheduler's signed word stands for: a node, as namespace/job/node id.
-- Empty: the machine came with a join code. One runner holds it until it has left.
ALTER TABLE runners ADD COLUMN workload TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX runners_workload ON runners (workload) WHERE workload <> '' AND state <> 'LEFT';
