//! Lists of the keys that a file may have: the structs of one file are shared with others, which may have more keys.

use std::collections::{BTreeMap, BTreeSet};

use syn::Expr;

use super::model::Table;
use super::source::{Found, Source, Sources};

/// Keys by table; the top level has no name.
pub type Known = BTreeMap<String, BTreeSet<String>>;

/// Returns the keys of a list such as `&[("rest", &["listen"])]`.
///
/// # Errors
/// If the constant is not there, or is no such list.
pub fn list<'s>(
    sources: &'s Sources<'s>,
    from: &'s Source<'s>,
    name: &str,
) -> Result<Known, String> {
    let found = sources.constant(from, &[name.to_owned()]);
    let Found { at, item } = found.ok_or_else(|| format!("{}: no constant {name}", from.path()))?;
    let wrong = || format!("{}: {name} is no list of tables with their keys", at.path());
    let tables = elements(item).ok_or_else(wrong)?;
    let entries = tables.iter().map(|entry| {
        let Expr::Tuple(pair) = entry else {
            return Err(wrong());
        };
        let table = pair.elems.first().and_then(text).ok_or_else(wrong)?;
        let keys = pair.elems.last().and_then(elements).ok_or_else(wrong)?;
        Ok((table, keys.iter().filter_map(text).collect()))
    });
    entries.collect()
}

fn elements(of: &Expr) -> Option<&syn::punctuated::Punctuated<Expr, syn::Token![,]>> {
    match of {
        Expr::Reference(reference) => elements(&reference.expr),
        Expr::Array(array) => Some(&array.elems),
        _ => None,
    }
}

fn text(of: &Expr) -> Option<String> {
    match of {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// Leaves out the keys and tables that are not in the list.
///
/// # Errors
/// If the list has a key that no struct has.
pub fn restrict(tables: Vec<Table>, known: &Known) -> Result<Vec<Table>, String> {
    let read: BTreeSet<(String, String)> = tables.iter().flat_map(names).collect();
    for (table, keys) in known {
        let unread = keys
            .iter()
            .find(|key| !read.contains(&(table.clone(), (*key).clone())));
        if let Some(key) = unread {
            return Err(format!(
                "the key \"{key}\" of [{table}] is accepted, and no struct reads it"
            ));
        }
    }
    let nothing = BTreeSet::new();
    let is_listed = |table: &str| {
        known.get("").unwrap_or(&nothing).contains(table) || known.contains_key(table)
    };
    let listed = tables.into_iter().filter(|table| {
        let top = table.name.split('.').next().unwrap_or_default();
        table.name.is_empty() || is_listed(top)
    });
    let restricted = listed.map(|mut table| {
        if let Some(keys) = known.get(&table.name) {
            table.keys.retain(|key| keys.contains(&key.name));
        }
        table
    });
    Ok(restricted.filter(|table| !table.keys.is_empty()).collect())
}

/// The keys of a table, and the table as a key of the one around it.
fn names(table: &Table) -> Vec<(String, String)> {
    let outer = table.name.rsplit_once('.').unwrap_or(("", &table.name));
    let keys = table
        .keys
        .iter()
        .map(|key| (table.name.clone(), key.name.clone()));
    keys.chain([(outer.0.to_owned(), outer.1.to_owned())])
        .collect()
}
