//! `COPY`.

use pg_query::protobuf::{self, node::Node as Tree};

use super::claims::{self, Action};
use super::find::find;
use super::insert::{Default, default_of};
use super::plan::{Context, Meaning, Plan};
use super::{Result, Write, parts, unmirrored};
use crate::core::class::Claims;

/// Plans it.
pub fn plan(cx: &Context<'_>, text: &str, copy: &protobuf::CopyStmt) -> Result<Plan> {
    if !copy.filename.is_empty() || copy.is_program {
        let what = "COPY with a file or a program of the server cannot be mirrored";
        let hint = "Use COPY FROM STDIN or COPY TO STDOUT, or \\copy.";
        return Err(unmirrored(what, "Each member has files of its own.", hint));
    }
    let Some(relation) = copy.relation.as_ref().filter(|_| copy.is_from) else {
        let found = find(&Tree::CopyStmt(Box::new(copy.clone())));
        if found.writes > 0 {
            let hint = "Use the statement itself.";
            return Err(unmirrored(
                "COPY of a statement that writes cannot be mirrored",
                "It writes.",
                hint,
            ));
        }
        return Ok(Plan::alone());
    };
    let table = match cx.meaning(&relation.schemaname, &relation.relname) {
        Meaning::Table(table) => table,
        Meaning::Temporary | Meaning::System => return Ok(Plan::alone()),
        Meaning::Unknown => return Ok(Plan::Unknown(relation.relname.clone())),
    };
    claims::check_table(cx, table)?;
    let named: Vec<&str> = parts::names(&copy.attlist).collect();
    for column in table
        .columns
        .iter()
        .filter(|column| !named.is_empty() && !named.contains(&column.name.as_str()))
    {
        if let Default::Open { .. } = default_of(cx, column)? {
            let what = format!(
                "this COPY to table \"{}\" cannot be mirrored",
                table.class()
            );
            let detail = format!(
                "Column \"{}\" is not copied, and its default differs.",
                column.name
            );
            let hint =
                "Copy the column as well, or copy to a temporary table and use INSERT ... SELECT.";
            return Err(unmirrored(what, detail, hint));
        }
    }
    let mut write = Write::new(text, Claims::default());
    write.is_copy = true;
    let keys = table.key.is_empty().then(Vec::new);
    claims::claim(cx, table, Action::Insert, keys, &mut write);
    Ok(Plan::Write(Box::new(write)))
}
