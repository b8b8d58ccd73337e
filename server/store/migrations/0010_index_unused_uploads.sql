-- Uploads that no session used: what is old among them goes.
CREATE INDEX artifacts_unused ON artifacts (created_at) WHERE session = '';
