//! The page as Markdown.

use super::model::{Default, Key, Table};

/// A kind of file, or a command's options.
pub struct Section {
    /// Title.
    pub title: &'static str,
    /// Text below the title.
    pub text: &'static str,
    /// Head of the first column.
    pub unit: &'static str,
    /// Tables, in the order of the structs.
    pub tables: Vec<Table>,
}

const HEAD: &str = "\
# Configuration reference

Every key of every configuration file, with its type, its default and its meaning. This page is generated from the
structs that the files are parsed into: change a doc comment there, then run `UPDATE=1 cargo test -p tidy`.

A *required* key has no default. A key with the default *none* may be left out. Lengths of time and sizes are texts with
a unit: `\"500ms\"`, `\"2s\"`, `\"5m\"`, `\"1d\"`; `\"64MiB\"`, `\"1GiB\"`. An address is
`\"host:port\"` or `\"unix:/path\"`. Unknown keys are refused.
";

/// Returns the page of these sections.
pub fn page(sections: &[Section]) -> String {
    let mut page = HEAD.to_owned();
    for section in sections {
        let (title, text) = (section.title, section.text);
        page.push_str(&format!("\n## {title}\n\n{text}\n"));
        for table in &section.tables {
            page.push_str(&heading(table));
            page.push_str(&rows(table, section.unit));
        }
    }
    page
}

fn heading(table: &Table) -> String {
    let name = match (table.name.as_str(), table.is_list) {
        ("", _) => return String::new(),
        (name, true) => format!("[[{name}]]"),
        (name, false) => format!("[{name}]"),
    };
    let meaning = match table.meaning.is_empty() {
        true => String::new(),
        false => format!("\n{}\n", sentence(&table.meaning)),
    };
    format!("\n### `{name}`\n{meaning}")
}

fn rows(table: &Table, unit: &str) -> String {
    if table.keys.is_empty() {
        return String::new();
    }
    let rows = table.keys.iter().map(row);
    let head = format!("\n| {unit} | type | default | meaning |\n|---|---|---|---|\n");
    head + &rows.collect::<String>()
}

fn row(key: &Key) -> String {
    let default = match &key.default {
        Default::Required => "*required*".to_owned(),
        Default::Absent => "none".to_owned(),
        Default::Value(value) => format!("`{value}`"),
    };
    let cells = [
        format!("`{}`", key.name),
        key.kind.clone(),
        default,
        sentence(&key.meaning),
    ];
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

/// The text with a full stop.
fn sentence(text: &str) -> String {
    match text.ends_with(['.', '?', '!']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}
