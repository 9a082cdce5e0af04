//! Small structs, and what the reference makes of them.

use super::known::{self, Known};
use super::model::{Default, Table};
use super::page::{Section, page};
use super::source::Sources;
use super::{flags, read};
use crate::tree::TextFile;

const OTHER: &str = "
    pub const LEASE: Duration = Duration::from_secs(2);
    pub struct Pace { every: Duration }
    impl Default for Pace { fn default() -> Pace { Pace { every: Duration::from_secs(24 * 3600) } } }
    /// A mode.
    #[serde(rename_all = \"kebab-case\")]
    pub enum Mode {
        /// Calls nobody.
        #[default] Off,
        /// Calls all.
        VerifyAll,
    }
    #[serde(untagged)]
    pub enum Zone { One(Address), Several(Vec<Address>) }
    #[serde(try_from = \"String\")]
    pub struct Label(String);
";

fn tables(text: &str) -> Result<Vec<Table>, String> {
    let files = [
        TextFile::new(
            "crates/a/src/config.rs",
            &format!("use b::parts::{{self, Mode, Pace, Zone, Label}};\n{text}"),
        ),
        TextFile::new("crates/b/src/parts.rs", OTHER),
        TextFile::new("crates/b/src/other.rs", "pub struct Mode { not: It }"),
    ];
    let sources = Sources::new(&files);
    let root = sources.structure(sources.file("crates/a/src/config.rs")?, &["Raw".to_owned()]);
    read::tables(&sources, root.ok_or("no Raw")?, "")
}

/// The only key of `Raw`, as `name | type | default | meaning`.
fn key(field: &str, more: &str) -> String {
    let tables = tables(&format!("struct Raw {{ /** Meaning. */ {field} }}\n{more}"));
    let tables = tables.unwrap_or_else(|error| panic!("{field}: {error}"));
    let key = &tables[0].keys[0];
    let default = match &key.default {
        Default::Required => "required",
        Default::Absent => "none",
        Default::Value(value) => value,
    };
    format!("{} | {} | {default} | {}", key.name, key.kind, key.meaning)
}

#[test]
fn fields_become_keys() {
    for (field, expected) in [
        ("a: bool", "a | true or false | required | Meaning."),
        ("a: Option<PathBuf>", "a | path | none | Meaning."),
        (
            "#[serde(default)] a: Vec<String>",
            "a | list of texts | [] | Meaning.",
        ),
        (
            "#[serde(rename = \"b\")] a: f64",
            "b | number | required | Meaning.",
        ),
        (
            "#[serde(alias = \"old\")] a: u32",
            "a | whole number | required | Meaning. Also called `old`.",
        ),
        (
            "#[serde(default)] a: Mode",
            "a | `\"off\"` or `\"verify-all\"` | \"off\" | Meaning. `\"off\"`: Calls nobody. `\"verify-all\"`: Calls all.",
        ),
        (
            "a: Vec<Zone>",
            "a | list; each item: address, or list of addresses | required | Meaning.",
        ),
        (
            "a: BTreeMap<String, Label>",
            "a | table; each value: text | required | Meaning.",
        ),
        (
            "#[serde(with = \"humantime_serde::option\")] a: Option<Duration>",
            "a | length of time, such as `\"500ms\"` | required | Meaning.",
        ),
    ] {
        assert_eq!(key(field, ""), expected);
    }
}

#[test]
fn defaults_are_what_the_code_says() {
    for (kind, body, expected) in [
        ("Duration", "Duration::from_millis(1500)", "\"1500ms\""),
        ("Duration", "parts::LEASE", "\"2s\""),
        (
            "Duration",
            "let pace = Pace::default(); pace.every",
            "\"1d\"",
        ),
        ("ByteSize", "ByteSize::mib(16 << 10)", "\"16GiB\""),
        ("u64", "64 << 20", "67108864"),
        (
            "SocketAddr",
            "([127, 0, 0, 1], 80).into()",
            "\"127.0.0.1:80\"",
        ),
        (
            "Address",
            "Address::Tcp { host: \"h\".to_owned(), port: 1 }",
            "\"h:1\"",
        ),
        ("Vec<String>", "vec![\"x\".to_owned()]", "[\"x\"]"),
        ("Mode", "Mode::VerifyAll", "\"verify-all\""),
    ] {
        let field = format!("#[serde(default = \"f\")] a: {kind}");
        let function = format!("fn f() -> {kind} {{ {body} }}");
        let found = key(&field, &function);
        assert_eq!(found.split(" | ").nth(2), Some(expected), "{found}");
    }
}

#[test]
fn tables_have_their_keys_and_defaults() {
    let tables = tables(
        "struct Raw { /// Inner.\n #[serde(default)] inner: Inner, /// Links.\n links: Vec<Link>, #[serde(flatten)] flat: Flat }
        #[serde(default)] struct Inner { /// A.\n a: u8, #[serde(skip)] b: Secret }
        impl Default for Inner { fn default() -> Self { Inner { a: 7, b: secret() } } }
        struct Link { /// C.\n c: String }
        struct Flat { /// D.\n d: bool }",
    );
    let tables = tables.unwrap();
    let names: Vec<(&str, bool)> = tables
        .iter()
        .map(|table| (table.name.as_str(), table.is_list))
        .collect();
    assert_eq!(names, [("", false), ("inner", false), ("links", true)]);
    assert_eq!(tables[0].keys[0].name, "d");
    assert_eq!(tables[1].meaning, "Inner.");
    assert_eq!(tables[1].keys.len(), 1);
    assert_eq!(tables[1].keys[0].default, Default::Value("7".to_owned()));
}

#[test]
fn fields_that_cannot_be_explained_are_refused() {
    for (text, why) in [
        ("struct Raw { a: bool }", "Raw.a: it has no doc comment"),
        ("struct Raw { /// A.\n a: Strange }", "Strange"),
        (
            "struct Raw { /// A.\n #[serde(default = \"f\")] a: u8 } fn f() -> u8 { g(3) }",
            "cannot tell a default",
        ),
        (
            "struct Raw { /// A.\n #[serde(default = \"f\")] a: u8 }",
            "no function f",
        ),
    ] {
        let refused = tables(text).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn keys_that_a_file_may_not_have_are_left_out() {
    let text = "struct Raw { /// A.\n a: bool, /// B.\n b: bool, /// T.\n t: T, /// U.\n u: T } struct T { /// C.\n c: bool }";
    let list = |keys: &[(&str, &[&str])]| -> Known {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        keys.iter()
            .map(|(table, names)| ((*table).to_owned(), owned(names)))
            .collect()
    };
    let kept = known::restrict(
        tables(text).unwrap(),
        &list(&[("", &["a", "t"]), ("t", &["c"])]),
    );
    let kept: Vec<(String, usize)> = kept
        .unwrap()
        .into_iter()
        .map(|table| (table.name, table.keys.len()))
        .collect();
    assert_eq!(kept, [(String::new(), 1), ("t".to_owned(), 1)]);
    let refused = known::restrict(tables(text).unwrap(), &list(&[("t", &["c", "d"])]));
    assert_eq!(
        refused.unwrap_err(),
        "the key \"d\" of [t] is accepted, and no struct reads it"
    );
}

#[test]
fn options_of_a_command_are_keys() {
    let text = "struct Store {
        /// Place.
        #[arg(long, value_name = \"DIR\")] data_dir: PathBuf,
        /// Memory.
        #[arg(long, value_name = \"SIZE\", default_value = \"1MiB\")] cache: ByteSize,
        #[arg(hide = true)] hidden: bool }";
    let files = [TextFile::new("crates/a/src/cli.rs", text)];
    let sources = Sources::new(&files);
    let found = sources.structure(
        sources.file("crates/a/src/cli.rs").unwrap(),
        &["Store".to_owned()],
    );
    let keys = flags::flags(found.unwrap()).unwrap();
    assert_eq!(
        (keys[0].name.as_str(), &keys[0].default),
        ("--data-dir", &Default::Required)
    );
    assert_eq!(keys[1].default, Default::Value("1MiB".to_owned()));
    assert_eq!(keys.len(), 2);
}

#[test]
fn the_page_has_a_row_for_each_key() {
    let tables =
        tables("struct Raw { /// T.\n t: T } struct T { /// One | two\n c: Option<u32> }").unwrap();
    let section = Section {
        title: "File",
        text: "Text.",
        unit: "key",
        tables,
    };
    let page = page(&[section]);
    let end = "\n## File\n\nText.\n\n### `[t]`\n\nT.\n\n| key | type | default | meaning |\n|---|---|---|---|\n\
        | `c` | whole number | none | One \\| two. |\n";
    assert!(page.ends_with(end), "{page}");
}
