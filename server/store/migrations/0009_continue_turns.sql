-- A runner-placed turn waits for a person without an attempt, and goes on in a new
-- one: after the decision, or after the outcome of what was approved.
INSERT INTO legal_steps (machine, prior, next) VALUES
    ('turn', 'WAITING_APPROVAL', 'RECEIVED'),
    ('turn', 'RUNNING_ACTION', 'RECEIVED');
