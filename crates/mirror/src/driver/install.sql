CREATE SCHEMA IF NOT EXISTS understudy_mirror;
CREATE TABLE IF NOT EXISTS understudy_mirror.state (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  floor bigint NOT NULL,
  is_diverged boolean NOT NULL DEFAULT false);
CREATE TABLE IF NOT EXISTS understudy_mirror.applied (number bigint PRIMARY KEY, token text NOT NULL);
CREATE OR REPLACE FUNCTION understudy_mirror.has(number bigint) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT $1 <= (SELECT floor FROM understudy_mirror.state) OR EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.number = $1)';
CREATE OR REPLACE FUNCTION understudy_mirror.committed(token text) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.token = $1)';
GRANT USAGE ON SCHEMA understudy_mirror TO PUBLIC;
-- Clients' sessions write the numbers of their transactions, which must be above all that is there.
GRANT INSERT ON understudy_mirror.applied TO PUBLIC;
GRANT SELECT ON understudy_mirror.state TO PUBLIC;
