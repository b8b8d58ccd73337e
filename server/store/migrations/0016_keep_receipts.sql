-- Why a grant was revoked, and the broker's signed receipt over what ended with it;
-- empty: nobody said, and none was signed.
ALTER TABLE grants ADD COLUMN revoked_why TEXT NOT NULL DEFAULT '';
ALTER TABLE grants ADD COLUMN receipt TEXT NOT NULL DEFAULT '';
