CREATE SCHEMA IF NOT EXISTS understudy_mirror;
CREATE TABLE IF NOT EXISTS understudy_mirror.state (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  floor bigint NOT NULL,
  is_diverged boolean NOT NULL DEFAULT false,
  -- Tokens up to this one may have been forgotten.
  forgotten_epoch bigint NOT NULL DEFAULT 0,
  forgotten_count bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS understudy_mirror.applied (number bigint PRIMARY KEY, token text NOT NULL);
CREATE OR REPLACE FUNCTION understudy_mirror.has(number bigint) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT $1 <= (SELECT floor FROM understudy_mirror.state) OR EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.number = $1)';
-- Null if nobody knows.
CREATE OR REPLACE FUNCTION understudy_mirror.committed(token text) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT CASE
    WHEN EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.token = $1) THEN true
    WHEN $1 !~ ''^[0-9]{1,10}-[0-9]{1,18}$'' THEN NULL
    WHEN (split_part($1, ''-'', 1)::bigint, split_part($1, ''-'', 2)::bigint)
      > (SELECT forgotten_epoch, forgotten_count FROM understudy_mirror.state) THEN false END';
GRANT USAGE ON SCHEMA understudy_mirror TO PUBLIC;
-- Clients' sessions write the numbers of their transactions, which must be above all that is there.
GRANT INSERT ON understudy_mirror.applied TO PUBLIC;
GRANT SELECT ON understudy_mirror.state TO PUBLIC;
