//! Reads what the names of a database lead to.
//!
//! Owns the questions to PostgreSQL's catalogs. Invariant: whatever the answer does not have is not proved to be harmless
//! ([`Catalog`]), so a question may find too much, and never too little.

use std::collections::HashSet;

use tokio_postgres::{Client, Error, Row};

use crate::core::sql::{Catalog, Function, Names, OWN_FUNCTIONS};

/// Extensions whose functions act on nothing outside of the database.
const INNER: &str = "'amcheck', 'autoinc', 'bloom', 'btree_gin', 'btree_gist', 'citext', 'cube', 'dict_int', 'dict_xsyn', \
    'earthdistance', 'fuzzystrmatch', 'hstore', 'insert_username', 'intarray', 'isn', 'lo', 'ltree', 'moddatetime', \
    'pageinspect', 'pg_buffercache', 'pg_freespacemap', 'pg_prewarm', 'pg_stat_statements', 'pg_trgm', 'pg_visibility', \
    'pg_walinspect', 'pgcrypto', 'pgrowlocks', 'pgstattuple', 'plperl', 'plpgsql', 'refint', 'seg', 'sslinfo', 'tablefunc', \
    'tcn', 'tsm_system_rows', 'tsm_system_time', 'unaccent', 'uuid-ossp', 'xml2'";

/// All functions: whether they are the users' own, whether they may act outside of the database.
fn all_functions() -> String {
    format!(
        "f AS MATERIALIZED (SELECT p.oid, p.proname, p.provolatile = 'v' AS is_volatile, \
            p.oid >= 16384 AND e.oid IS NULL AS is_own, p.oid < 16384 AS is_builtin, \
            p.oid >= 16384 AND CASE WHEN e.oid IS NULL THEN NOT l.lanpltrusted \
                ELSE p.provolatile = 'v' AND NOT l.lanpltrusted AND e.extname NOT IN ({INNER}) END AS reaches_out \
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
        LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass \
            AND d.objid = p.oid AND d.deptype = 'e' \
        LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid)"
    )
}

/// Each name of a function.
fn functions() -> String {
    format!(
        "WITH {} SELECT proname::text, bool_or(is_volatile), NOT bool_or(is_own), bool_or(reaches_out), \
            bool_and(is_builtin) FROM f GROUP BY 1",
        all_functions()
    )
}

/// What leads to a function of the users' own, or to a volatile one that is not harmless: `o` operators, `t` types, `r` relations
/// that are read, `w` relations that are written, `f` those of which something is foreign, and `u` if there is something that no
/// name tells of. What PostgreSQL itself has is not among its dependencies, so its functions are looked up in the trees.
fn calling(harmless: &str) -> String {
    format!(
        "WITH RECURSIVE {functions}, \
    bad AS MATERIALIZED (SELECT oid, reaches_out FROM f WHERE is_own \
        OR is_volatile AND proname NOT IN ({harmless}) OR proname LIKE '%\\_to\\_xml%' OR proname LIKE 'ts\\_%stat' \
        OR proname = 'ts_rewrite' OR proname LIKE 'pg\\_input\\_%'), \
    trees AS (SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::oid AS class, ev_class AS oid, ev_action::text AS tree \
            FROM pg_catalog.pg_rewrite WHERE ev_class >= 16384 AND ev_type = '1' \
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::oid, polrelid, \
            coalesce(polqual::text, '') || coalesce(polwithcheck::text, '') FROM pg_catalog.pg_policy \
        UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass::oid, contypid, conbin::text \
            FROM pg_catalog.pg_constraint WHERE contypid >= 16384), \
    named AS (SELECT trees.class, trees.oid, m[1]::oid AS function FROM trees, \
        LATERAL pg_catalog.regexp_matches(tree, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\\d+)', 'g') m), \
    edges(refclassid, refobjid, class, oid) AS MATERIALIZED ( \
        SELECT d.refclassid, d.refobjid, d.classid, d.objid FROM pg_catalog.pg_depend d \
            WHERE d.deptype <> 'e' AND d.classid IN ('pg_catalog.pg_operator'::pg_catalog.regclass, \
                'pg_catalog.pg_type'::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass, \
                'pg_catalog.pg_cast'::pg_catalog.regclass) \
        UNION SELECT d.refclassid, d.refobjid, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, r.ev_class \
            FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid \
            WHERE d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass \
        UNION SELECT d.refclassid, d.refobjid, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, p.polrelid \
            FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_policy p ON p.oid = d.objid \
            WHERE d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass \
        UNION SELECT d.refclassid, d.refobjid, 'pg_catalog.pg_type'::pg_catalog.regclass::oid, k.contypid \
            FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_constraint k ON k.oid = d.objid AND k.contypid <> 0 \
            WHERE d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass \
        UNION SELECT d.refclassid, d.refobjid, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, v.adrelid \
            FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attrdef v ON v.oid = d.objid \
            JOIN pg_catalog.pg_attribute a ON a.attrelid = v.adrelid AND a.attnum = v.adnum AND a.attgenerated = 'v' \
            WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass), \
    spreads(oid, other) AS MATERIALIZED ( \
        SELECT k.conrelid, k.confrelid FROM pg_catalog.pg_constraint k WHERE k.contype = 'f' \
        UNION SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i \
        UNION SELECT d.refobjid, r.ev_class FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid \
            WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass), \
    calling(class, oid) AS ( \
        SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass::oid, oid FROM bad WHERE oid >= 16384 \
        UNION SELECT named.class, named.oid FROM named JOIN bad ON bad.oid = named.function \
        UNION SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass::oid, o.oid \
            FROM pg_catalog.pg_operator o JOIN bad ON bad.oid = o.oprcode \
        UNION SELECT e.class, e.oid FROM calling c JOIN edges e ON e.refclassid = c.class AND e.refobjid = c.oid), \
    direct AS ( \
        SELECT t.tgrelid AS oid, bad.reaches_out FROM pg_catalog.pg_trigger t JOIN bad ON bad.oid = t.tgfoid \
            AND bad.oid >= 16384 WHERE NOT t.tgisinternal \
        UNION SELECT v.adrelid, false FROM calling c JOIN pg_catalog.pg_depend d ON d.refclassid = c.class \
            AND d.refobjid = c.oid AND d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass \
            JOIN pg_catalog.pg_attrdef v ON v.oid = d.objid \
        UNION SELECT k.conrelid, false FROM calling c JOIN pg_catalog.pg_depend d ON d.refclassid = c.class \
            AND d.refobjid = c.oid AND d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass \
            JOIN pg_catalog.pg_constraint k ON k.oid = d.objid AND k.conrelid <> 0 \
        UNION SELECT i.indrelid, false FROM calling c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid \
            WHERE c.class = 'pg_catalog.pg_class'::pg_catalog.regclass \
        UNION SELECT c.oid, false FROM calling c WHERE c.class = 'pg_catalog.pg_class'::pg_catalog.regclass \
        UNION SELECT r.oid, true FROM pg_catalog.pg_class r WHERE r.relkind = 'f' \
        UNION SELECT r.ev_class, true FROM bad JOIN pg_catalog.pg_depend d \
            ON d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.refobjid = bad.oid \
            AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass \
            JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid WHERE bad.reaches_out), \
    coded(oid, reaches_out) AS ( \
        SELECT oid, reaches_out FROM direct \
        UNION SELECT s.other, c.reaches_out FROM coded c JOIN spreads s ON s.oid = c.oid) \
    SELECT 'o', o.oprname::text FROM calling c JOIN pg_catalog.pg_operator o ON o.oid = c.oid \
        WHERE c.class = 'pg_catalog.pg_operator'::pg_catalog.regclass \
    UNION SELECT 't', t.typname::text FROM calling c JOIN pg_catalog.pg_type t ON t.oid = c.oid \
        WHERE c.class = 'pg_catalog.pg_type'::pg_catalog.regclass \
    UNION SELECT 't', t.typname::text FROM pg_catalog.pg_cast k JOIN bad ON bad.oid = k.castfunc \
        JOIN pg_catalog.pg_type t ON t.oid = k.casttarget \
    UNION SELECT 'r', r.relname::text FROM calling c JOIN pg_catalog.pg_class r ON r.oid = c.oid \
        WHERE c.class = 'pg_catalog.pg_class'::pg_catalog.regclass \
    UNION SELECT 'w', r.relname::text FROM coded c JOIN pg_catalog.pg_class r ON r.oid = c.oid \
    UNION SELECT 'f', r.relname::text FROM coded c JOIN pg_catalog.pg_class r ON r.oid = c.oid WHERE c.reaches_out \
    UNION SELECT 'u', '' WHERE EXISTS (SELECT FROM pg_catalog.pg_cast k JOIN bad ON bad.oid = k.castfunc \
            WHERE k.castcontext = 'i' OR k.casttarget IN ('pg_catalog.json'::pg_catalog.regtype, \
                'pg_catalog.jsonb'::pg_catalog.regtype)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_amproc a JOIN bad ON bad.oid = a.amproc) \
        OR EXISTS (SELECT FROM pg_catalog.pg_amop a JOIN calling c ON c.oid = a.amopopr \
            AND c.class = 'pg_catalog.pg_operator'::pg_catalog.regclass) \
        OR EXISTS (SELECT FROM pg_catalog.pg_range r JOIN bad ON bad.oid IN (r.rngsubdiff, r.rngcanonical)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_type t JOIN bad \
            ON bad.oid IN (t.typinput, t.typoutput, t.typreceive, t.typsend, t.typmodin)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_conversion k JOIN bad ON bad.oid = k.conproc)",
        functions = all_functions(),
    )
}

/// All names that are there: `o` operators, `t` types, `r` relations, `s` sequences, `a` columns.
const KNOWN: &str = "SELECT 'o', oprname::text FROM pg_catalog.pg_operator \
    UNION SELECT 't', typname::text FROM pg_catalog.pg_type \
    UNION SELECT CASE relkind WHEN 'S' THEN 's' ELSE 'r' END, relname::text FROM pg_catalog.pg_class \
        WHERE relkind IN ('r', 'v', 'm', 'p', 'f', 'S') \
    UNION SELECT 'a', attname::text FROM pg_catalog.pg_attribute WHERE NOT attisdropped";

/// Settings of their own kind (their names have a dot) that functions name, and `true` for one if the name is computed. What
/// PostgreSQL lists of settings does not have these, so they must be asked for by their names.
const CUSTOM: &str = "WITH own AS (SELECT p.oid, coalesce(p.prosrc, '') || ' ' || \
        coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), '') AS source, l.lanname \
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
        WHERE p.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
            WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e')) \
    SELECT DISTINCT lower(m[1]), false FROM own, LATERAL pg_catalog.regexp_matches(source, \
        '(?:''|\\mset\\s+(?:session\\s+|local\\s+)?)\\s*([a-z_][a-z0-9_$]*(?:\\.[a-z_][a-z0-9_$]*)+)', 'gi') m \
    UNION SELECT '', true FROM own WHERE lanname NOT IN ('sql', 'plpgsql', 'c', 'internal') AND source ~* 'set_config|\\mset\\M' \
        OR source ~* '\\mset\\s+(session\\s+|local\\s+)?%' \
        OR (SELECT count(*) FROM pg_catalog.regexp_matches(source, 'set_config\\s*\\(', 'gi')) \
            > (SELECT count(*) FROM pg_catalog.regexp_matches(source, 'set_config\\s*\\(\\s*''[^'']+''(::text)?\\s*,', 'gi')) \
    UNION SELECT DISTINCT lower(pg_catalog.split_part(c, '=', 1)), false \
        FROM pg_catalog.pg_db_role_setting, LATERAL pg_catalog.unnest(setconfig) c WHERE c LIKE '%.%=%'";

/// True if commits of anybody may not wait until they are durable, by the configuration, a database or a role.
const COMMITS_ASYNC: &str = "SELECT pg_catalog.current_setting('synchronous_commit') = 'off' \
    OR EXISTS (SELECT FROM pg_catalog.pg_db_role_setting, LATERAL pg_catalog.unnest(setconfig) c \
        WHERE c ~* '^synchronous_commit=(off|false|no|0)$') \
    OR EXISTS (SELECT FROM pg_catalog.pg_proc, LATERAL pg_catalog.unnest(proconfig) c \
        WHERE c ~* '^synchronous_commit=(off|false|no|0)$')";

/// Reads all of it.
pub async fn read(client: &Client) -> Result<Catalog, Error> {
    // Each of them depends on many statistics that a small database may not have.
    client
        .batch_execute("SET search_path = pg_catalog; SET jit = off; SET statement_timeout = '20s'")
        .await?;
    // Before what they do: whoever sees another text afterwards reads again.
    let own_functions = format!("SELECT {OWN_FUNCTIONS}");
    let own_functions: String = client.query_one(&own_functions, &[]).await?.get(0);
    let functions = client.query(&functions(), &[]).await?;
    let mut catalog = Catalog::new(functions.iter().map(function));
    for row in client.query(KNOWN, &[]).await? {
        let name: Box<str> = row.get::<_, &str>(1).into();
        match row.get::<_, &str>(0) {
            "o" => catalog.operators.known.insert(name),
            "t" => catalog.types.known.insert(name),
            "s" => catalog.relations.known.insert(name.clone()) | catalog.sequences.insert(name),
            "a" => catalog.columns.insert(name),
            _ => catalog.relations.known.insert(name),
        };
    }
    let harmless: Vec<String> = Catalog::harmless()
        .map(|name| format!("'{name}'"))
        .collect();
    let (mut coded, mut foreign) = (HashSet::new(), HashSet::new());
    for row in client.query(&calling(&harmless.join(", ")), &[]).await? {
        let name: Box<str> = row.get::<_, &str>(1).into();
        let calling = |names: &mut Names, name| names.calling.insert(name);
        match row.get::<_, &str>(0) {
            "o" => calling(&mut catalog.operators, name),
            "t" => calling(&mut catalog.types, name),
            "r" => calling(&mut catalog.relations, name),
            "w" => coded.insert(name),
            "f" => foreign.insert(name),
            _ => std::mem::replace(&mut catalog.calls_unnamed, true),
        };
    }
    let servers = client
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_foreign_server)",
            &[],
        )
        .await?;
    catalog.is_closed = !catalog.has_reaching_functions && !servers.get::<_, bool>(0);
    (catalog.coded, catalog.foreign) = (coded, foreign);
    catalog.commits_async = client.query_one(COMMITS_ASYNC, &[]).await?.get(0);
    catalog.own_functions = own_functions.into();
    for row in client.query(CUSTOM, &[]).await? {
        match row.get::<_, bool>(1) {
            true => catalog.computes_settings = true,
            false => catalog.custom_settings.push(row.get::<_, &str>(0).into()),
        }
    }
    Ok(catalog)
}

fn function(row: &Row) -> Function {
    Function {
        name: row.get::<_, &str>(0).into(),
        is_volatile: row.get(1),
        is_settled: row.get(2),
        reaches_out: row.get(3),
        is_builtin: row.get(4),
    }
}
