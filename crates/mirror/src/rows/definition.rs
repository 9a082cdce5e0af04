//! Texts of definitions, as they are executed on another member.
//!
//! A text may have several statements, each of which has been noted as one definition with the whole text: the statement that is meant
//! is found by its command and its turn. Invariant: what is executed is exactly one statement, and one that defines something.

use pg_query::NodeEnum;
use pg_query::protobuf::{self, CreateTableAsStmt, ObjectType};

use super::shared::{fires, is_temporary};

/// The text of a definition for another member; nothing if there is nothing to be defined there. `turn` counts the definitions of one
/// transaction that have this text.
///
/// # Errors
/// Why it cannot be told what it says.
pub fn portable(text: &str, tag: &str, turn: usize) -> Result<Option<String>, String> {
    let parsed = pg_query::parse(text, pg_query::ParserOptions::DEFAULT);
    let mut tree = parsed.map_err(|error| error.to_string())?.protobuf;
    let defining = tree.stmts.iter().enumerate().filter(|(_, raw)| {
        let node = raw.stmt.as_ref().and_then(|stmt| stmt.node.as_ref());
        node.is_some_and(fires)
    });
    let places: Vec<usize> = defining.map(|(at, _)| at).collect();
    let at = match (places.as_slice(), turn) {
        ([], _) => return Err(format!("there is no definition in it ({tag})")),
        // A function may say the same again and again.
        ([only], _) => *only,
        // Each of them is noted whenever all are executed.
        (several, turn) => several[turn % several.len()],
    };
    let is_only = tree.stmts.len() == 1;
    let raw = tree.stmts.swap_remove(at);
    let mut node = raw
        .stmt
        .and_then(|stmt| stmt.node)
        .ok_or("there is nothing in it")?;
    match adapt(&mut node) {
        Adapted::Nothing => Ok(None),
        Adapted::Same if is_only => Ok(Some(text.to_owned())),
        Adapted::Same | Adapted::Other => node
            .deparse(pg_query::DeparseOptions::default())
            .map(Some)
            .map_err(|error| error.to_string()),
    }
}

enum Adapted {
    Same,
    Other,
    Nothing,
}

/// Tables whose rows follow are defined without them, and definitions that must run by themselves run within the transaction.
fn adapt(node: &mut NodeEnum) -> Adapted {
    match node {
        NodeEnum::IndexStmt(index) if index.concurrent => index.concurrent = false,
        NodeEnum::DropStmt(gone) if gone.concurrent => gone.concurrent = false,
        NodeEnum::CreateTableAsStmt(made) => {
            if made.objtype != ObjectType::ObjectTable as i32 {
                return Adapted::Same;
            }
            let Some(into) = &mut made.into else {
                return Adapted::Same;
            };
            if is_temporary(into.rel.as_ref()) {
                return Adapted::Nothing;
            }
            into.skip_data = true;
        }
        NodeEnum::SelectStmt(select) => {
            let Some(mut into) = select.into_clause.take() else {
                return Adapted::Same;
            };
            if is_temporary(into.rel.as_ref()) {
                return Adapted::Nothing;
            }
            into.skip_data = true;
            let query = protobuf::Node {
                node: Some(NodeEnum::SelectStmt(select.clone())),
            };
            *node = NodeEnum::CreateTableAsStmt(Box::new(CreateTableAsStmt {
                query: Some(Box::new(query)),
                into: Some(into),
                objtype: ObjectType::ObjectTable as i32,
                is_select_into: false,
                if_not_exists: false,
            }));
        }
        _ => return Adapted::Same,
    }
    Adapted::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, turn: usize) -> Result<Option<String>, String> {
        portable(text, "A COMMAND", turn)
    }

    #[test]
    fn a_single_definition_is_as_it_was_said() {
        let text = "CREATE TABLE  t (id int) -- as it is";
        assert_eq!(of(text, 0), Ok(Some(text.to_owned())));
        // Said again and again by a function.
        assert_eq!(of(text, 7), Ok(Some(text.to_owned())));
    }

    #[test]
    fn of_several_statements_each_is_found_by_its_turn() {
        let text = "BEGIN; CREATE TABLE t (id int); INSERT INTO t VALUES (1); CREATE INDEX i ON t (id); COMMIT";
        let one = |turn| of(text, turn).map(Option::unwrap_or_default);
        assert_eq!(one(0).as_deref(), Ok("CREATE TABLE t (id int)"));
        assert!(one(1).is_ok_and(|text| text.starts_with("CREATE INDEX i ON t")));
        // The text was sent once more.
        assert_eq!(one(2), one(0));
        assert!(of("INSERT INTO t VALUES (1)", 0).is_err());
        assert!(of("CREATE TABLE (", 0).is_err());
    }

    #[test]
    fn rows_and_concurrency_are_left_out() {
        for (text, wanted) in [
            (
                "CREATE TABLE t AS SELECT random() AS r",
                "CREATE TABLE t AS SELECT random() AS r  WITH NO DATA",
            ),
            (
                "SELECT 1 AS a INTO t",
                "CREATE TABLE t AS SELECT 1 AS a  WITH NO DATA",
            ),
            (
                "CREATE INDEX CONCURRENTLY i ON t (id)",
                "CREATE INDEX i ON t USING btree (id)",
            ),
            ("DROP INDEX CONCURRENTLY i", "DROP INDEX i"),
        ] {
            assert_eq!(of(text, 0), Ok(Some(wanted.to_owned())), "{text}");
        }
        for text in [
            "CREATE TEMP TABLE t AS SELECT 1",
            "SELECT 1 INTO TEMP t",
            "CREATE TABLE pg_temp.t AS SELECT 1",
        ] {
            assert_eq!(of(text, 0), Ok(None), "{text}");
        }
    }
}
