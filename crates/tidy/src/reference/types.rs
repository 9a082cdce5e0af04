//! Types in words, as whoever writes a configuration thinks of them.

use syn::{GenericArgument, PathArguments, Type};

use super::attributes::{Options, prose, renamed};
use super::source::{Found, Source, Sources, names};

/// Types that files have values of, by the last name of their path. Number and words for one of them.
const WORDS: &[(&str, &str)] = &[
    ("bool", "true or false"),
    ("u8", "whole number, 0 to 255"),
    ("u16", "whole number, 0 to 65535"),
    ("u32", "whole number"),
    ("u64", "whole number"),
    ("usize", "whole number"),
    ("i64", "whole number"),
    ("f64", "number"),
    ("String", "text"),
    ("PathBuf", "path"),
    ("Duration", "length of time, such as `\"500ms\"`"),
    ("ByteSize", "size, such as `\"64MiB\"`"),
    ("Address", "address"),
    ("SocketAddr", "IP address and port"),
    ("Ipv4Addr", "IPv4 address"),
    ("NodeName", "name"),
    ("VolumeName", "name"),
    ("Table", "table"),
    ("Keep", "text"),
];

/// Shape of a field's type.
pub enum Shape<'s> {
    /// A value, with its type in words, and the meaning of its choices.
    Value(String, String),
    /// A table with keys of its own.
    Table(Found<'s, syn::ItemStruct>),
    /// Any number of such tables.
    Tables(Found<'s, syn::ItemStruct>),
    /// Such tables by name.
    Named(Found<'s, syn::ItemStruct>),
}

/// A type without the `Option` around it.
pub struct Bare<'t> {
    /// The type.
    pub inner: &'t Type,
    /// There was one.
    pub is_optional: bool,
}

/// Takes off an `Option`.
pub fn bare(of: &Type) -> Bare<'_> {
    match argument(of, "Option", 0) {
        Some(inner) => Bare {
            inner,
            is_optional: true,
        },
        None => Bare {
            inner: of,
            is_optional: false,
        },
    }
}

/// Path of a named type.
pub fn path(of: &Type) -> Option<Vec<String>> {
    match of {
        Type::Path(path) => Some(names(&path.path)),
        _ => None,
    }
}

/// The argument of a generic type of this name.
fn argument<'t>(of: &'t Type, name: &str, at: usize) -> Option<&'t Type> {
    let Type::Path(path) = of else {
        return None;
    };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.iter().nth(at)? {
        GenericArgument::Type(inner) if last.ident == name => Some(inner),
        _ => None,
    }
}

/// Returns the shape of a type that is named in the file `from`.
///
/// # Errors
/// If there are no words for the type.
pub fn shape<'s>(
    sources: &'s Sources<'s>,
    from: &'s Source<'s>,
    of: &Type,
) -> Result<Shape<'s>, String> {
    let of = bare(of).inner;
    let item = argument(of, "Vec", 0).or(match of {
        Type::Array(array) => Some(&*array.elem),
        _ => None,
    });
    if let Some(inner) = item {
        return Ok(match shape(sources, from, inner)? {
            Shape::Value(words, meaning) => Shape::Value(list(&words), meaning),
            Shape::Table(table) | Shape::Tables(table) | Shape::Named(table) => {
                Shape::Tables(table)
            }
        });
    }
    if let Some(inner) = argument(of, "BTreeMap", 1) {
        return Ok(match shape(sources, from, inner)? {
            Shape::Value(words, _) => {
                Shape::Value(format!("table; each value: {words}"), String::new())
            }
            Shape::Table(table) | Shape::Tables(table) | Shape::Named(table) => Shape::Named(table),
        });
    }
    named(sources, from, of)
}

fn list(words: &str) -> String {
    match words {
        "text" => "list of texts".to_owned(),
        "path" => "list of paths".to_owned(),
        "address" => "list of addresses".to_owned(),
        _ => format!("list; each item: {words}"),
    }
}

fn named<'s>(
    sources: &'s Sources<'s>,
    from: &'s Source<'s>,
    of: &Type,
) -> Result<Shape<'s>, String> {
    let unknown = || {
        format!(
            "{}: tidy has no words for a type; add them to reference/types.rs",
            from.path()
        )
    };
    let path = path(of).ok_or_else(unknown)?;
    let last = path.last().map(String::as_str).unwrap_or_default();
    if let Some((_, words)) = WORDS.iter().find(|(name, _)| *name == last) {
        return Ok(Shape::Value((*words).to_owned(), String::new()));
    }
    let Some(Found { at, item }) = sources.named_type(from, &path) else {
        return Err(format!("{last}: {}", unknown()));
    };
    match item {
        syn::Item::Struct(item) => structure(sources, Found { at, item }),
        syn::Item::Enum(item) => choices(sources, Found { at, item }),
        _ => Err(unknown()),
    }
}

/// A struct is a table, unless it is written as a text, or is nothing but its only field.
fn structure<'s>(
    sources: &'s Sources<'s>,
    found: Found<'s, syn::ItemStruct>,
) -> Result<Shape<'s>, String> {
    let options = Options::of(&found.item.attrs, "serde")?;
    if options.has("try_from") || options.has("from") {
        return Ok(Shape::Value("text".to_owned(), String::new()));
    }
    match &found.item.fields {
        syn::Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
            shape(sources, found.at, &fields.unnamed[0].ty)
        }
        _ => Ok(Shape::Table(found)),
    }
}

/// The variants of an enum: names, or the types of which one fits.
fn choices<'s>(
    sources: &'s Sources<'s>,
    found: Found<'s, syn::ItemEnum>,
) -> Result<Shape<'s>, String> {
    let options = Options::of(&found.item.attrs, "serde")?;
    if options.has("try_from") || options.has("from") {
        return Ok(Shape::Value("text".to_owned(), String::new()));
    }
    if options.has("untagged") {
        return alternatives(sources, found);
    }
    let mut words = Vec::new();
    let mut meanings = Vec::new();
    for variant in &found.item.variants {
        let name = variant_name(variant, &options)?;
        meanings.push(format!("`\"{name}\"`: {}", prose(&variant.attrs)));
        words.push(format!("`\"{name}\"`"));
    }
    Ok(Shape::Value(one_of(&words), meanings.join(" ")))
}

/// Spelling of a variant in a file.
///
/// # Errors
/// If its attributes are no list.
pub fn variant_name(variant: &syn::Variant, of_enum: &Options) -> Result<String, String> {
    let own = Options::of(&variant.attrs, "serde")?;
    let spelled = || renamed(&variant.ident.to_string(), of_enum.value("rename_all"));
    Ok(own.value("rename").map_or_else(spelled, str::to_owned))
}

fn alternatives<'s>(
    sources: &'s Sources<'s>,
    found: Found<'s, syn::ItemEnum>,
) -> Result<Shape<'s>, String> {
    let mut words = Vec::new();
    let fields = found
        .item
        .variants
        .iter()
        .flat_map(|variant| &variant.fields);
    for field in fields {
        if let Shape::Value(one, _) = shape(sources, found.at, &field.ty)? {
            words.push(one);
        }
    }
    Ok(Shape::Value(words.join(", or "), String::new()))
}

/// `a, b or c`.
fn one_of(words: &[String]) -> String {
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => words.concat(),
    }
}
