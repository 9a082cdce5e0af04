CREATE SCHEMA IF NOT EXISTS understudy_mirror;
CREATE TABLE IF NOT EXISTS understudy_mirror.state (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  floor bigint NOT NULL,
  is_diverged boolean NOT NULL DEFAULT false);
CREATE TABLE IF NOT EXISTS understudy_mirror.applied (number bigint PRIMARY KEY, token text NOT NULL);
CREATE INDEX IF NOT EXISTS applied_token ON understudy_mirror.applied (token);
CREATE OR REPLACE FUNCTION understudy_mirror.commit(number bigint, token text) RETURNS void
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog
  AS 'INSERT INTO understudy_mirror.applied VALUES ($1, $2)';
CREATE OR REPLACE FUNCTION understudy_mirror.has(number bigint) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT $1 <= (SELECT floor FROM understudy_mirror.state) OR EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.number = $1)';
CREATE OR REPLACE FUNCTION understudy_mirror.committed(token text) RETURNS boolean
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
  AS 'SELECT EXISTS (SELECT FROM understudy_mirror.applied a WHERE a.token = $1)';
GRANT USAGE ON SCHEMA understudy_mirror TO PUBLIC;
