-- Names are written with their schemas where they are not found by the search path, and they are read by whoever has another one:
-- so the path is empty meanwhile. Each part needs what the one before it answers, and so comes after it.
SELECT o.catalog
FROM (SELECT pg_catalog.current_setting('search_path') AS path OFFSET 0) was
CROSS JOIN LATERAL (SELECT pg_catalog.set_config('search_path', '', true) || was.path AS path OFFSET 0) empty
CROSS JOIN LATERAL (
  SELECT * FROM (
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
              'default', coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.pg_get_expr(t.typdefaultbin, 0), t.typdefault),
              'identity', a.attidentity,
              -- That of a partition is its root's. Not by pg_get_serial_sequence, which not everybody may ask.
              'sequence', CASE WHEN a.attidentity <> '' THEN (
                SELECT pg_catalog.min(pg_catalog.format('%I.%I', ns.nspname, cs.relname))
                FROM pg_catalog.pg_depend p
                JOIN pg_catalog.pg_attribute o ON o.attrelid = p.refobjid AND o.attnum = p.refobjsubid AND o.attname = a.attname
                JOIN pg_catalog.pg_class cs ON cs.oid = p.objid AND cs.relkind = 'S'
                JOIN pg_catalog.pg_namespace ns ON ns.oid = cs.relnamespace
                WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.refclassid = 'pg_catalog.pg_class'::regclass AND p.deptype = 'i'
                  AND p.refobjid = ANY (c.oid || ARRAY(SELECT h.relid::oid FROM pg_catalog.pg_partition_ancestors(c.oid) h))) END,
              'is_generated', a.attgenerated <> '',
              -- Dates and times, and what may be made of them.
              'may_be_a_time', coalesce(e.typcategory, t.typcategory) IN ('D', 'C')
                OR coalesce(e.typcategory, t.typcategory) = 'R' AND a.atttypid NOT IN ('int4range'::regtype, 'int8range'::regtype,
                  'numrange'::regtype, 'int4multirange'::regtype, 'int8multirange'::regtype, 'nummultirange'::regtype),
              'has_plain_texts', a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype)
                OR a.atttypid IN ('text'::regtype, 'varchar'::regtype)
                  AND coalesce((SELECT l.collisdeterministic FROM pg_catalog.pg_collation l WHERE l.oid = a.attcollation), true)
              ) ORDER BY a.attnum), '[]')
            FROM pg_catalog.pg_attribute a
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
          'key', (
            SELECT coalesce(pg_catalog.json_agg(a.attname ORDER BY k.ord), '[]')
            FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, ord), pg_catalog.pg_attribute a
            WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid AND a.attnum = k.attnum AND k.ord <= i.indnkeyatts),
          'others', (
            -- What an expression or a condition of an index reads is a dependency of it.
            SELECT coalesce(pg_catalog.json_agg((
              SELECT coalesce(pg_catalog.json_agg(k.name), '["*"]') FROM (
                SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])
                UNION
                SELECT a.attname::text FROM pg_catalog.pg_depend p
                JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.refobjsubid AND p.refobjsubid > 0
                WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.objid = i.indexrelid
                  AND p.refclassid = 'pg_catalog.pg_class'::regclass AND p.refobjid = c.oid) k (name))), '[]')
            FROM pg_catalog.pg_index i
            WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary),
          'triggers', (
            SELECT coalesce(pg_catalog.json_agg(g.tgname), '[]')
            FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'),
          'has_rules', c.relrowsecurity OR c.relkind IN ('r', 'p') AND c.relhasrules,
          'has_row_security', c.relrowsecurity,
          'is_unlogged', c.relpersistence = 'u',
          -- A view of an extension is the extension's business.
          'definition', CASE WHEN c.relkind = 'v' AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_depend p
              WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.objid = c.oid AND p.deptype = 'e')
            THEN pg_catalog.pg_get_viewdef(c.oid) END,
          'is_related', c.relkind = 'p' OR c.relispartition OR EXISTS (
            SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid OR h.inhparent = c.oid),
          'refers', (SELECT coalesce(pg_catalog.json_agg(link), '[]') FROM links WHERE own = c.oid AND refers),
          'referred', (SELECT coalesce(pg_catalog.json_agg(link), '[]') FROM links WHERE own = c.oid AND NOT refers))), '[]')
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
          AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'understudy_mirror')),
      'system', (
        SELECT pg_catalog.json_agg(relname) FROM pg_catalog.pg_class WHERE relnamespace = 'pg_catalog'::regnamespace),
      'domains', (
        SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(typname, pg_catalog.pg_get_expr(typdefaultbin, 0))), '[]')
        FROM pg_catalog.pg_type WHERE typtype = 'd' AND typdefaultbin IS NOT NULL),
      'builtin', (
        SELECT pg_catalog.json_object_agg(name, worst) FROM (
          SELECT proname AS name, pg_catalog.max(provolatile::text) AS worst FROM pg_catalog.pg_proc
          WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile <> 'i' GROUP BY 1) b),
      'own', (
        SELECT coalesce(pg_catalog.json_object_agg(name, worst), '{}') FROM (
          SELECT proname AS name, pg_catalog.max(provolatile::text) AS worst FROM pg_catalog.pg_proc
          WHERE pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
            AND provolatile <> 'i' GROUP BY 1) o),
      'has_deferrable', EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE condeferrable))::text AS catalog
  ) read WHERE empty.path IS NOT NULL OFFSET 0) o
CROSS JOIN LATERAL (SELECT pg_catalog.set_config('search_path', empty.path, true) AS path WHERE o.catalog IS NOT NULL OFFSET 0) again
WHERE again.path IS NOT NULL
