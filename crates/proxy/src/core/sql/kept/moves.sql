WITH RECURSIVE told(relation, name, value) AS ({columns}),
named(sequence, value) AS ({sequences}),
columns(relation, number, value) AS (
    SELECT a.attrelid, a.attnum, told.value FROM told
    JOIN pg_catalog.pg_attribute a ON a.attrelid = told.relation AND a.attname = told.name
),
owned(sequence, value) AS (
    SELECT sequence, value FROM named
    UNION ALL
    SELECT d.objid, columns.value FROM columns
    JOIN pg_catalog.pg_depend d ON d.refobjid = columns.relation AND d.refobjsubid = columns.number
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
      AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype = 'i'
    UNION ALL
    SELECT d.refobjid, columns.value FROM columns
    JOIN pg_catalog.pg_attrdef f ON f.adrelid = columns.relation AND f.adnum = columns.number
    JOIN pg_catalog.pg_depend d ON d.objid = f.oid
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
    WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
      AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
),
highest(sequence, value, rises) AS (
    SELECT owned.sequence, pg_catalog.max(owned.value), pg_catalog.bool_and(s.seqincrement > 0)
    FROM owned JOIN pg_catalog.pg_sequence s ON s.seqrelid = owned.sequence GROUP BY owned.sequence
),
moved(sequence, value, now, calls) AS (
    SELECT sequence, value, pg_catalog.nextval(sequence::pg_catalog.regclass), 1 FROM highest WHERE rises
    UNION ALL
    SELECT sequence, value, pg_catalog.nextval(sequence::pg_catalog.regclass), calls + 1
    FROM moved WHERE now < value AND calls < 1000
),
far AS (SELECT sequence FROM moved GROUP BY sequence, value HAVING pg_catalog.max(now) >= value)
SELECT CAST(CASE
    WHEN EXISTS (SELECT FROM highest WHERE sequence NOT IN (SELECT sequence FROM far)) THEN 'a sequence is behind'
    WHEN EXISTS (SELECT FROM told JOIN pg_catalog.pg_class c ON c.oid = told.relation WHERE c.relkind NOT IN ('r', 'p'))
    THEN 'not a table'
    ELSE '1' END AS pg_catalog.int4)
