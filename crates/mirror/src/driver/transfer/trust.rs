//! Code of clients that a state transfer would execute.
//!
//! `pg_restore` is a superuser's: it checks rows, computes columns and reads literals of domains with whatever clients have defined.
//! Invariant: nothing is copied from a database in which that reaches anything but functions of superusers, and of those the harmless
//! ones, unless the operator trusts whoever has defined it.

use crate::driver::wire::{Postgres, WireError};

/// Asks for what would be executed, each with its owner. What is PostgreSQL's own leaves no dependency, so functions are looked for in
/// the expressions themselves. An expression of somebody who is not trusted may call what computes from what it is given, and nothing
/// that reads or does something else: with a superuser's rights it could do anything.
const REACHED: &str = "WITH trusted AS MATERIALIZED (
    SELECT oid, rolname, rolsuper OR rolname = ANY (pg_catalog.string_to_array($TRUST$, E'\\n')) AS is_trusted FROM pg_catalog.pg_roles),
  expressions (owner, what, tree) AS (
    SELECT c.relowner, 'a check of ' || c.oid::pg_catalog.regclass::text, k.conbin::text
      FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid WHERE k.contype = 'c'
    UNION ALL SELECT t.typowner, 'a check of the domain ' || t.oid::pg_catalog.regtype::text, k.conbin::text
      FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_type t ON t.oid = k.contypid WHERE k.contype = 'c'
    UNION ALL SELECT c.relowner, 'a generated column of ' || c.oid::pg_catalog.regclass::text, d.adbin::text
      FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_class c ON c.oid = d.adrelid
      JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE a.attgenerated <> ''
    UNION ALL SELECT c.relowner, 'the partition key of ' || c.oid::pg_catalog.regclass::text, p.partexprs::text
      FROM pg_catalog.pg_partitioned_table p JOIN pg_catalog.pg_class c ON c.oid = p.partrelid),
  calls (owner, what, function) AS (
    SELECT owner, what, (pg_catalog.regexp_matches(tree, ':(?:funcid|opfuncid|hashfuncid|negfuncid) (\\d+)', 'g'))[1]::pg_catalog.oid
      FROM expressions
    -- Of whoever has defined them, whatever they are for.
    UNION ALL SELECT 10, 'the cast of ' || c.castsource::pg_catalog.regtype::text, c.castfunc FROM pg_catalog.pg_cast c
    UNION ALL SELECT 10, 'the event trigger ' || e.evtname, e.evtfoid FROM pg_catalog.pg_event_trigger e WHERE e.evtenabled <> 'D')
  SELECT DISTINCT pg_catalog.format('%s (%s of %s)', c.what, p.oid::pg_catalog.regprocedure,
    CASE WHEN f.is_trusted THEN o.rolname ELSE f.rolname END)
  FROM calls c JOIN pg_catalog.pg_proc p ON p.oid = c.function
  JOIN trusted f ON f.oid = p.proowner JOIN trusted o ON o.oid = c.owner
  WHERE NOT f.is_trusted OR NOT o.is_trusted AND p.provolatile <> 'i'
    AND (p.provolatile = 'v' OR p.oid >= 16384 OR p.proname ~ 'xml') ORDER BY 1 LIMIT 5";

/// Lists some of what would be executed of roles that are not trusted; `source` is in the snapshot that is copied.
pub(super) async fn reached(source: &mut Postgres, trust: &[String]) -> Result<String, WireError> {
    let trust = proxy::core::settings::quote_literal(&trust.join("\n"));
    let reached = source.query(&REACHED.replace("$TRUST$", &trust)).await?;
    let reached: Vec<String> = reached.rows().into_iter().flatten().flatten().collect();
    Ok(reached.join(", "))
}
