//! Options of a command that has no file, from the struct that clap parses them into.

use super::attributes::{Options, prose, renamed};
use super::model::{Default, Key};
use super::source::Found;

/// Words for the values of options, by the name that the help shows.
const WORDS: &[(&str, &str)] = &[
    ("DIR", "path of a directory"),
    ("FILE", "path of a file"),
    ("ADDRESS", "address"),
    ("NAME", "name"),
    ("SIZE", "size, such as `64MiB`"),
];

/// Returns the options that the help shows.
///
/// # Errors
/// If one has no doc comment, or a value without words.
pub fn flags(of: Found<'_, syn::ItemStruct>) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for field in &of.item.fields {
        let options = Options::of(&field.attrs, "arg")?;
        if options.has("hide") {
            continue;
        }
        let ident = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let wrong = |why: &str| format!("{}.{ident}: {why}", of.item.ident);
        let placeholder = options.value("value_name").unwrap_or_default();
        let words = WORDS.iter().find(|(name, _)| *name == placeholder);
        let (_, words) =
            words.ok_or_else(|| wrong("no words for its value in reference/flags.rs"))?;
        let meaning = prose(&field.attrs);
        if meaning.is_empty() {
            return Err(wrong("it has no doc comment"));
        }
        keys.push(Key {
            name: format!("--{}", renamed(&ident, Some("kebab-case"))),
            kind: (*words).to_owned(),
            default: default(field, &options),
            meaning,
        });
    }
    Ok(keys)
}

fn default(field: &syn::Field, options: &Options) -> Default {
    let is_optional = super::types::bare(&field.ty).is_optional;
    match options.value("default_value") {
        Some(value) => Default::Value(value.to_owned()),
        None if is_optional => Default::Absent,
        None => Default::Required,
    }
}
