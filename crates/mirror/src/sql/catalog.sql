-- Foreign keys, each seen from both tables.
WITH links AS (
  SELECT s.refers, s.own, pg_catalog.json_build_object(
    'table', n.nspname || '.' || c.relname,
    'columns', (SELECT pg_catalog.json_agg(a.attname ORDER BY k.ord)
      FROM pg_catalog.unnest(s.own_keys) WITH ORDINALITY k (attnum, ord)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = s.own AND a.attnum = k.attnum),
    'others', (SELECT pg_catalog.json_agg(a.attname ORDER BY k.ord)
      FROM pg_catalog.unnest(s.other_keys) WITH ORDINALITY k (attnum, ord)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = s.other AND a.attnum = k.attnum)) AS link
  FROM (
    SELECT true, conrelid, confrelid, conkey, confkey FROM pg_catalog.pg_constraint WHERE contype = 'f'
    UNION ALL
    SELECT false, confrelid, conrelid, confkey, conkey FROM pg_catalog.pg_constraint WHERE contype = 'f'
  ) s (refers, own, other, own_keys, other_keys)
  JOIN pg_catalog.pg_class c ON c.oid = s.other JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
SELECT pg_catalog.json_build_object(
  'tables', (
    SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
      'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
      'columns', (
        SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
          'name', a.attname,
          'type_name', pg_catalog.format_type(a.atttypid, NULL),
          'default', coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), t.typdefault),
          'identity', a.attidentity,
          'sequence', CASE WHEN a.attidentity <> ''
            THEN (SELECT pg_catalog.format('%I.%I', sn.nspname, sc.relname) FROM pg_catalog.pg_depend p
              JOIN pg_catalog.pg_class sc ON sc.oid = p.objid AND sc.relkind = 'S'
              JOIN pg_catalog.pg_namespace sn ON sn.oid = sc.relnamespace
              WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.refclassid = p.classid
                AND p.refobjid = c.oid AND p.refobjsubid = a.attnum AND p.deptype = 'i') END,
          'is_generated', a.attgenerated <> '',
          'has_plain_texts', a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype)
            OR a.atttypid IN ('text'::regtype, 'varchar'::regtype)
              AND coalesce((SELECT l.collisdeterministic FROM pg_catalog.pg_collation l WHERE l.oid = a.attcollation), true)
          ) ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
      'key', (
        SELECT coalesce(pg_catalog.json_agg(a.attname ORDER BY k.ord), '[]')
        FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, ord), pg_catalog.pg_attribute a
        WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid AND a.attnum = k.attnum AND k.ord <= i.indnkeyatts),
      'others', (
        SELECT coalesce(pg_catalog.json_agg((
          SELECT pg_catalog.json_agg(coalesce(a.attname, '*'))
          FROM pg_catalog.unnest(i.indkey::int2[]) k (attnum)
          LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum AND k.attnum > 0)), '[]')
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary),
      'triggers', (
        SELECT coalesce(pg_catalog.json_agg(g.tgname), '[]')
        FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'),
      'has_rules', c.relrowsecurity OR c.relkind IN ('r', 'p') AND c.relhasrules,
      'is_related', c.relkind = 'p' OR c.relispartition OR EXISTS (
        SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid OR h.inhparent = c.oid),
      'refers', (SELECT coalesce(pg_catalog.json_agg(link), '[]') FROM links WHERE own = c.oid AND refers),
      'referred', (SELECT coalesce(pg_catalog.json_agg(link), '[]') FROM links WHERE own = c.oid AND NOT refers))), '[]')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'understudy_mirror')),
  'builtin', (
    SELECT pg_catalog.json_object_agg(name, worst) FROM (
      SELECT proname AS name, pg_catalog.max(provolatile::text) AS worst FROM pg_catalog.pg_proc
      WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile <> 'i' GROUP BY 1) b),
  'own', (
    SELECT coalesce(pg_catalog.json_object_agg(name, worst), '{}') FROM (
      SELECT proname AS name, pg_catalog.max(provolatile::text) AS worst FROM pg_catalog.pg_proc
      WHERE pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
        AND provolatile <> 'i' GROUP BY 1) o),
  'has_deferrable', EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE condeferrable))::text
