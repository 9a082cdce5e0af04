//! What is copied: fields that may mean the time at which they are read. Each member would read its own.

use pg_query::protobuf::{self, a_const::Val, node::Node as Tree};

use super::facts::Table;
use super::find::names_a_time;

/// Where such fields may be in what is copied, and how they are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// For each column whether a text may mean a time in it.
    columns: Vec<bool>,
    delimiter: u8,
    /// What fields may be quoted by, and what is before a quote within.
    quote: Option<(u8, u8)>,
    /// What is copied has a binary form, in which times are numbers.
    is_binary: bool,
    has_header: bool,
}

/// An option of `COPY`, as a text; empty if it has no value.
pub fn option(copy: &protobuf::CopyStmt, name: &str) -> Option<String> {
    let mut options = copy.options.iter().filter_map(|one| match &one.node {
        Some(Tree::DefElem(element)) => Some(element),
        _ => None,
    });
    let element = options.find(|element| element.defname == name)?;
    let value = element.arg.as_ref().and_then(|arg| arg.node.as_ref());
    Some(match value {
        Some(Tree::String(text)) => text.sval.clone(),
        Some(Tree::Boolean(truth)) => truth.boolval.to_string(),
        Some(Tree::AConst(constant)) => match &constant.val {
            Some(Val::Sval(text)) => text.sval.clone(),
            _ => String::new(),
        },
        _ => String::new(),
    })
}

impl Times {
    /// Of a `COPY` to these columns of a table; of none, to all.
    pub fn of(table: &Table, named: &[&str], copy: &protobuf::CopyStmt) -> Times {
        let may_be = |name: &str| {
            table
                .column(name)
                .is_some_and(|column| column.may_be_a_time)
        };
        let columns = match named {
            [] => {
                let all = table.columns.iter().filter(|column| !column.is_generated);
                all.map(|column| column.may_be_a_time).collect()
            }
            named => named.iter().map(|name| may_be(name)).collect(),
        };
        let letter = |name: &str| option(copy, name).and_then(|text| text.bytes().next());
        let format = option(copy, "format").unwrap_or_default();
        let is_csv = format == "csv";
        let quote = letter("quote").unwrap_or(b'"');
        Times {
            columns,
            delimiter: letter("delimiter").unwrap_or(if is_csv { b',' } else { b'\t' }),
            quote: is_csv.then(|| (quote, letter("escape").unwrap_or(quote))),
            is_binary: format == "binary",
            has_header: option(copy, "header")
                .is_some_and(|said| !matches!(said.as_str(), "false" | "off" | "0")),
        }
    }

    /// True if one of these fields may mean the time at which it is read.
    pub fn are_in(&self, copied: &[u8]) -> bool {
        if self.is_binary || !self.columns.contains(&true) {
            return false;
        }
        let (mut column, mut row, mut start, mut at) = (0, 0, 0, 0);
        let mut is_quoted = false;
        while at <= copied.len() {
            let byte = copied.get(at).copied();
            let ends_row = matches!(byte, None | Some(b'\n' | b'\r'));
            match (byte, self.quote) {
                (Some(byte), Some((quote, escape)))
                    if is_quoted && byte == escape && escape != quote =>
                {
                    at += 1
                }
                // Two quotes that stand for one leave it as it is.
                (Some(byte), Some((quote, _))) if byte == quote => is_quoted = !is_quoted,
                (Some(_), None) if byte == Some(b'\\') => at += 1,
                _ if byte.is_some() && is_quoted => {}
                (Some(byte), _) if byte == self.delimiter => {
                    if self.is_a_time(row, column, &copied[start..at]) {
                        return true;
                    }
                    column += 1;
                    start = at + 1;
                }
                _ if ends_row => {
                    if self.is_a_time(row, column, &copied[start..at.min(copied.len())]) {
                        return true;
                    }
                    // The two letters of one end of a line are two rows here, one of them empty.
                    row += usize::from(start < at || column > 0);
                    (column, start) = (0, at + 1);
                }
                _ => {}
            }
            at += 1;
        }
        false
    }

    fn is_a_time(&self, row: usize, column: usize, field: &[u8]) -> bool {
        if row == 0 && self.has_header || !self.columns.get(column).copied().unwrap_or(true) {
            return false;
        }
        match field {
            b"\\N" | b"\\." => false,
            field => {
                let text = String::from_utf8_lossy(field);
                names_a_time(&text) || self.quote.is_none() && is_hidden(&text)
            }
        }
    }
}

/// True if a time may be in a field that is written with backslashes: before a letter, a space, or the number of a letter.
fn is_hidden(field: &str) -> bool {
    let after = |mark: &str| {
        field
            .split('\\')
            .skip(1)
            .any(|rest| rest.starts_with(|letter: char| mark.contains(letter)))
    };
    let spaced = || {
        field
            .replace("\\t", " ")
            .replace("\\n", " ")
            .replace("\\r", " ")
    };
    field.contains('\\')
        && (after("0123456789x")
            || names_a_time(&field.replace('\\', ""))
            || names_a_time(&spaced()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::facts::Column;
    use crate::sql::parts;

    fn times(text: &str) -> Times {
        let column = |name: &str, may_be_a_time| Column {
            name: name.to_owned(),
            may_be_a_time,
            ..Column::default()
        };
        let table = Table {
            columns: vec![column("a", false), column("at", true)],
            ..Table::default()
        };
        let Ok(Some(Tree::CopyStmt(copy))) = parts::one(text) else {
            panic!("{text}");
        };
        let named: Vec<&str> = parts::names(&copy.attlist).collect();
        Times::of(&table, &named, &copy)
    }

    #[test]
    fn a_time_is_found_where_it_may_be_one() {
        for (text, copied, is_there) in [
            ("COPY t FROM STDIN", "now\t2020-01-01\ntoday\t\\N\n", false),
            ("COPY t FROM STDIN", "x\t2020-01-01\r\nx\tnow\r\n", true),
            ("COPY t FROM STDIN", "x\tToday 12:00", true),
            ("COPY t FROM STDIN", "x\tn\\ow\n", true),
            ("COPY t FROM STDIN", "x\t\\tnow\n", true),
            ("COPY t FROM STDIN", "x\t\\156ow\n", true),
            ("COPY t FROM STDIN", "x\\\tnow\t2020-01-01\n", false),
            ("COPY t (at, a) FROM STDIN", "now\tx\n", true),
            ("COPY t (a) FROM STDIN", "now\n", false),
            (
                "COPY t FROM STDIN (FORMAT csv)",
                "\"a,\nnow\",2020-01-01\n",
                false,
            ),
            (
                "COPY t FROM STDIN (FORMAT csv)",
                "\"a\"\"b\",\"now\"\n",
                true,
            ),
            (
                "COPY t FROM STDIN CSV HEADER",
                "a,now\nx,2020-01-01\n",
                false,
            ),
            (
                "COPY t FROM STDIN CSV HEADER DELIMITER ';'",
                "a;at\nx;now\n",
                true,
            ),
            ("COPY t FROM STDIN (FORMAT binary)", "x\tnow\n", false),
            ("COPY t FROM STDIN", "x\t{2020-01-01,tomorrow}\n", true),
        ] {
            assert_eq!(
                times(text).are_in(copied.as_bytes()),
                is_there,
                "{text}: {copied}"
            );
        }
    }
}
