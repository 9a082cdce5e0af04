-- Also executed where an earlier version has made some of it.
CREATE SCHEMA IF NOT EXISTS understudy_mirror;
CREATE TABLE IF NOT EXISTS understudy_mirror.state (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  floor bigint NOT NULL,
  is_diverged boolean NOT NULL DEFAULT false);
ALTER TABLE understudy_mirror.state
  -- Tokens up to this one may have been forgotten.
  ADD COLUMN IF NOT EXISTS forgotten_epoch bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS forgotten_count bigint NOT NULL DEFAULT 0,
  -- Which log the member belongs to.
  ADD COLUMN IF NOT EXISTS log uuid,
  -- What it has answered otherwise than the primary, and since when that is known.
  ADD COLUMN IF NOT EXISTS difference text,
  ADD COLUMN IF NOT EXISTS differs_since timestamptz;
CREATE TABLE IF NOT EXISTS understudy_mirror.applied (number bigint PRIMARY KEY, token text NOT NULL);
-- Null if the number is another transaction's: somebody else has written it.
CREATE OR REPLACE FUNCTION understudy_mirror.has(number bigint, token text) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS 'SELECT CASE
    WHEN EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.number = $1 AND a.token = $2) THEN true
    WHEN EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.number = $1) THEN NULL
    ELSE $1 <= (SELECT floor FROM understudy_mirror.state) END';
GRANT USAGE ON SCHEMA understudy_mirror TO PUBLIC;
-- An earlier version had clients' sessions write numbers.
REVOKE INSERT ON understudy_mirror.applied FROM PUBLIC;
GRANT SELECT ON understudy_mirror.state TO PUBLIC;
