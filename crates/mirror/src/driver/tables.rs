//! The member's tables that rows are written to, as its catalog has them, and whose code runs when that is done.
//!
//! Invariant: a table is that of the definitions which it is asked with. Code counts as a client's unless it is known to be harmless: what
//! checks, domains, generated columns, indexes and partitions call is immutable and a superuser's, and the operators and types that they
//! name are PostgreSQL's own. A table that a superuser owns counts as its owner's.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use postgres_protocol::escape::escape_literal;

use crate::rows::write::{CodeOwner, Column, Described};

/// True if code of clients may run when a row of the table is written. What PostgreSQL has noted that expressions need does not include its
/// own functions, of which some execute what they are told (`query_to_xml`) or change the session (`set_config`): those are looked for in
/// the expressions. `own_type` is the domain that a constraint is of, and null for tables, which name types for their columns.
const CODE: &str = "WITH RECURSIVE tables (oid) AS ( \
      SELECT {table}::pg_catalog.regclass::pg_catalog.oid \
      UNION SELECT i.inhparent FROM tables JOIN pg_catalog.pg_inherits i ON i.inhrelid = tables.oid), \
    types (oid) AS ( \
      SELECT a.atttypid FROM tables JOIN pg_catalog.pg_attribute a ON a.attrelid = tables.oid \
        WHERE a.atttypid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped \
      UNION SELECT n.oid FROM types JOIN pg_catalog.pg_type t ON t.oid = types.oid CROSS JOIN LATERAL ( \
          SELECT t.typelem UNION ALL SELECT t.typbasetype \
          UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid) \
          UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped \
        ) n (oid) WHERE n.oid >= 16384), \
    things (class, oid, own_type) AS ( \
      SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, oid, NULL::pg_catalog.oid FROM tables \
      UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid, 0 FROM tables \
        JOIN pg_catalog.pg_index i ON i.indrelid = tables.oid \
      UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, c.contypid FROM pg_catalog.pg_constraint c \
        WHERE c.conrelid IN (SELECT oid FROM tables) OR c.contypid IN (SELECT oid FROM types) \
      UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid, 0 FROM tables \
        JOIN pg_catalog.pg_attrdef d ON d.adrelid = tables.oid JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid \
        AND a.attnum = d.adnum AND a.attgenerated <> ''), \
    needs (class, oid, own_type) AS ( \
      SELECT DISTINCT d.refclassid, d.refobjid, things.own_type FROM things \
        JOIN pg_catalog.pg_depend d ON d.classid = things.class AND d.objid = things.oid), \
    operators (oid) AS ( \
      SELECT oid FROM needs WHERE class = 'pg_catalog.pg_operator'::pg_catalog.regclass \
      UNION ALL SELECT m.amopopr FROM needs JOIN pg_catalog.pg_opclass o ON o.oid = needs.oid \
        JOIN pg_catalog.pg_amop m ON m.amopfamily = o.opcfamily WHERE needs.class = 'pg_catalog.pg_opclass'::pg_catalog.regclass), \
    functions (oid) AS ( \
      SELECT oid FROM needs WHERE class = 'pg_catalog.pg_proc'::pg_catalog.regclass \
      UNION ALL SELECT p.oprcode FROM operators JOIN pg_catalog.pg_operator p ON p.oid = operators.oid \
      UNION ALL SELECT m.amproc FROM needs JOIN pg_catalog.pg_opclass o ON o.oid = needs.oid \
        JOIN pg_catalog.pg_amproc m ON m.amprocfamily = o.opcfamily WHERE needs.class = 'pg_catalog.pg_opclass'::pg_catalog.regclass), \
    trees (tree) AS ( \
      SELECT c.conbin::pg_catalog.text FROM things JOIN pg_catalog.pg_constraint c ON c.oid = things.oid \
        WHERE things.class = 'pg_catalog.pg_constraint'::pg_catalog.regclass \
      UNION ALL SELECT d.adbin::pg_catalog.text FROM things JOIN pg_catalog.pg_attrdef d ON d.oid = things.oid \
        WHERE things.class = 'pg_catalog.pg_attrdef'::pg_catalog.regclass \
      UNION ALL SELECT pg_catalog.concat_ws(' ', i.indexprs::pg_catalog.text, i.indpred::pg_catalog.text) \
        FROM tables JOIN pg_catalog.pg_index i ON i.indrelid = tables.oid \
      UNION ALL SELECT p.partexprs::pg_catalog.text FROM tables JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = tables.oid) \
    SELECT EXISTS (SELECT FROM functions JOIN pg_catalog.pg_proc p ON p.oid = functions.oid \
        JOIN pg_catalog.pg_roles r ON r.oid = p.proowner WHERE NOT r.rolsuper OR p.provolatile <> 'i') \
      OR EXISTS (SELECT FROM operators WHERE oid >= 16384) \
      OR EXISTS (SELECT FROM needs JOIN pg_catalog.pg_type t ON t.oid = needs.oid \
        WHERE needs.class = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid >= 16384 AND t.typtype <> 'e' AND t.oid <> needs.own_type) \
      OR EXISTS (SELECT FROM trees CROSS JOIN LATERAL pg_catalog.regexp_matches(tree, \
          ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\\d+)', 'g') f (found) \
        JOIN pg_catalog.pg_proc p ON p.oid = f.found[1]::pg_catalog.oid WHERE p.provolatile <> 'i') \
      OR EXISTS (SELECT FROM trees WHERE tree ~ '\\{NEXTVALUEEXPR')";

/// Asks what there is to know of a table.
pub fn question(name: &str) -> String {
    let table = escape_literal(name);
    let code = CODE.replace("{table}", &table);
    format!(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attidentity = 'a', \
         (SELECT pg_catalog.format('OPERATOR(%I.%s)', n.nspname, o.oprname) FROM pg_catalog.pg_index i \
          CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indclass::pg_catalog.oid[])) \
            k (attnum, opclass) \
          JOIN pg_catalog.pg_opclass c ON c.oid = k.opclass JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily \
            AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype AND m.amopstrategy = 3 \
          JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace \
          WHERE i.indrelid = a.attrelid AND (i.indisprimary OR i.indisreplident) AND i.indisvalid AND k.attnum = a.attnum LIMIT 1), \
         code.owner, code.name, code.is_forced \
         FROM pg_catalog.pg_class t LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped \
         LEFT JOIN LATERAL (SELECT r.oid, r.rolname, t.relforcerowsecurity FROM pg_catalog.pg_roles r \
           WHERE r.oid = t.relowner AND NOT r.rolsuper AND ({code})) code (owner, name, is_forced) ON true \
         WHERE t.oid = {table}::pg_catalog.regclass",
    )
}

/// Reads the rows of the answer.
pub fn read(rows: Vec<Vec<Option<String>>>) -> Described {
    let mut described = Described::default();
    for row in rows {
        let mut row = row.into_iter();
        let mut next = || row.next().flatten();
        let (name, type_name, is_always, equals) = (next(), next(), next(), next());
        let (owner, owner_name, is_forced) = (next(), next(), next());
        if let (Some(name), Some(type_name)) = (name, type_name) {
            let column = Column {
                type_name,
                is_always: is_always.as_deref() == Some("t"),
                equals,
            };
            described.columns.insert(name, column);
        }
        if let (Some(oid), Some(name)) = (owner.and_then(|oid| oid.parse().ok()), owner_name) {
            described.code_of = Some(CodeOwner {
                oid,
                name,
                is_forced: is_forced.as_deref() == Some("t"),
            });
        }
    }
    described
}

/// Tables of the member, as of so many changes of definitions.
#[derive(Default)]
pub struct Tables(Mutex<(u64, HashMap<String, Arc<Described>>)>);

impl Tables {
    /// A table, if it is known as of these definitions.
    pub fn get(&self, definitions: u64, name: &str) -> Option<Arc<Described>> {
        let known = self.0.lock();
        (known.0 == definitions)
            .then(|| known.1.get(name).cloned())
            .flatten()
    }

    /// A table was read.
    pub fn learn(&self, definitions: u64, name: &str, table: &Arc<Described>) {
        let mut known = self.0.lock();
        if known.0 != definitions {
            *known = (definitions, HashMap::new());
        }
        known.1.insert(name.to_owned(), table.clone());
    }
}
