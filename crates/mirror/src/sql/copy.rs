//! `COPY`.

use pg_query::protobuf::{self, node::Node as Tree};

use super::claims::{self, Action};
use super::copied::{Times, option};
use super::find::find;
use super::insert::{Default, default_of};
use super::plan::{Context, Meaning, Plan, is_read_only};
use super::{Result, Write, parts, unmirrored};
use crate::core::class::Claims;

/// Plans it.
pub fn plan(cx: &Context<'_>, text: &str, copy: &protobuf::CopyStmt) -> Result<Plan> {
    if !copy.filename.is_empty() || copy.is_program {
        let what = "COPY with a file or a program of the server cannot be mirrored";
        let hint = "Use COPY FROM STDIN or COPY TO STDOUT, or \\copy.";
        return Err(unmirrored(what, "Each member has files of its own.", hint));
    }
    let node = Tree::CopyStmt(Box::new(copy.clone()));
    let Some(relation) = copy.relation.as_ref().filter(|_| copy.is_from) else {
        if !is_read_only(cx, &find(&node)) {
            return Err(unmirrored(
                "COPY of this cannot be mirrored",
                "It writes, advances a sequence, or calls a function of which nobody knows what it does.",
                "Use the statement itself.",
            ));
        }
        return Ok(Plan::alone());
    };
    let table = match cx.meaning(&relation.schemaname, &relation.relname) {
        Meaning::Table(table) => table,
        Meaning::Temporary => {
            return match is_read_only(cx, &find(&node)) {
                true => Ok(Plan::alone()),
                false => Err(not_determined(
                    &relation.relname,
                    "Its condition writes or advances a sequence.",
                )),
            };
        }
        Meaning::System => return Err(claims::of_catalog()),
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
            let why = format!(
                "Column \"{}\" is not copied, and its default differs.",
                column.name
            );
            return Err(not_determined(&table.class(), &why));
        }
    }
    if cx.differs(&find(&copy.where_clause))?.is_some() {
        let why = "Its condition does not mean the same rows on both members.";
        return Err(not_determined(&table.class(), why));
    }
    let is_binary = option(copy, "format").is_some_and(|format| format == "binary");
    if is_binary && table.columns.iter().any(|one| one.type_name.contains('.')) {
        let why = "Its binary form has the numbers of types of your own, which each member gives by itself.";
        return Err(not_determined(&table.class(), why));
    }
    let asks_for_defaults = option(copy, "default").is_some();
    if asks_for_defaults && super::insert::has_open_defaults(cx, table)? {
        let why = "What is copied may ask for defaults, and one of them differs.";
        return Err(not_determined(&table.class(), why));
    }
    let mut write = Write::new(text, Claims::default());
    write.is_copy = true;
    write.times = Some(Times::of(table, &named, copy));
    let keys = table.key.is_empty().then(Vec::new);
    claims::claim(cx, table, Action::Insert, keys, &mut write);
    Ok(Plan::Write(Box::new(write)))
}

fn not_determined(table: &str, why: &str) -> Box<protocol::frame::Refusal> {
    unmirrored(
        format!("this COPY to table \"{table}\" cannot be mirrored"),
        why,
        "Copy all columns as they are to be, or copy to a temporary table and use INSERT ... SELECT.",
    )
}
