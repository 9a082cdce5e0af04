//! From a struct to the tables of a file: fields become keys, as serde reads them.

use std::collections::BTreeMap;

use super::attributes::{Options, prose, renamed};
use super::defaults::Evaluator;
use super::model::{Default, Key, Table};
use super::source::{Found, Source, Sources};
use super::types::{self, Shape};

/// Returns the tables of a file that is parsed into this struct, which itself is the table `name`.
///
/// # Errors
/// Which field tidy does not understand.
pub fn tables<'s>(
    sources: &'s Sources<'s>,
    root: Found<'s, syn::ItemStruct>,
    name: &str,
) -> Result<Vec<Table>, String> {
    let mut reader = Reader {
        evaluator: Evaluator { sources },
        tables: Vec::new(),
    };
    let table = Table {
        name: name.to_owned(),
        is_list: false,
        meaning: String::new(),
        keys: Vec::new(),
    };
    reader.table(root, table)?;
    Ok(merged(reader.tables))
}

/// Tables of one name become one, as several structs read their keys from it.
pub fn merged(tables: Vec<Table>) -> Vec<Table> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut merged: Vec<Table> = Vec::new();
    for table in tables {
        match places.get(&table.name) {
            Some(place) => {
                let known = &mut merged[*place].keys;
                let is_new = |key: &Key| known.iter().all(|other| other.name != key.name);
                let new: Vec<Key> = table
                    .keys
                    .iter()
                    .filter(|key| is_new(key))
                    .cloned()
                    .collect();
                known.extend(new);
            }
            None => {
                places.insert(table.name.clone(), merged.len());
                merged.push(table);
            }
        }
    }
    merged
}

struct Reader<'s> {
    evaluator: Evaluator<'s>,
    tables: Vec<Table>,
}

/// Rules of a struct for all of its fields.
struct Container<'s> {
    at: &'s Source<'s>,
    options: Options,
    /// The struct has a default of its own, by a function if that is not derived.
    default: Option<Option<Found<'s, syn::ImplItemFn>>>,
}

impl<'s> Reader<'s> {
    fn table(&mut self, of: Found<'s, syn::ItemStruct>, mut table: Table) -> Result<(), String> {
        let place = self.tables.len();
        self.tables.push(table.clone());
        self.fields(of, &mut table)?;
        self.tables[place] = table;
        Ok(())
    }

    fn fields(&mut self, of: Found<'s, syn::ItemStruct>, table: &mut Table) -> Result<(), String> {
        let options = Options::of(&of.item.attrs, "serde")?;
        let own = [of.item.ident.to_string()];
        let default = options
            .has("default")
            .then(|| self.evaluator.sources.default_of(of.at, &own));
        let container = Container {
            at: of.at,
            options,
            default,
        };
        for field in &of.item.fields {
            let name = field.ident.as_ref().map(ToString::to_string);
            let read = self.field(&container, field, table);
            read.map_err(|error| {
                format!("{}.{}: {error}", of.item.ident, name.unwrap_or_default())
            })?;
        }
        Ok(())
    }

    fn field(
        &mut self,
        container: &Container<'s>,
        field: &'s syn::Field,
        table: &mut Table,
    ) -> Result<(), String> {
        let options = Options::of(&field.attrs, "serde")?;
        if options.has("skip") || options.has("skip_deserializing") {
            return Ok(());
        }
        let ident = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let spelled = || renamed(&ident, container.options.value("rename_all"));
        let name = options.value("rename").map_or_else(spelled, str::to_owned);
        let shape = types::shape(self.evaluator.sources, container.at, &field.ty)?;
        let spelled = dotted(&table.name, &name);
        let (found, name, is_list) = match shape {
            Shape::Value(kind, choices) => {
                let default = self.default(container, field, &options)?;
                let meaning = meaning(field, &choices, &options)?;
                table.keys.push(Key {
                    name,
                    kind,
                    default,
                    meaning,
                });
                return Ok(());
            }
            Shape::Table(found) if options.has("flatten") => return self.fields(found, table),
            Shape::Table(found) => (found, spelled, false),
            Shape::Tables(found) => (found, spelled, true),
            Shape::Named(found) => (found, format!("{spelled}.NAME"), false),
        };
        let inner = Table {
            name,
            is_list,
            meaning: documented(field)?,
            keys: Vec::new(),
        };
        self.table(found, inner)
    }

    fn default(
        &self,
        container: &Container<'s>,
        field: &'s syn::Field,
        options: &Options,
    ) -> Result<Default, String> {
        let ident = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let is_read_by_function = options.has("with") || options.has("deserialize_with");
        let value = match (
            options.value("default"),
            options.has("default"),
            &container.default,
        ) {
            (Some(function), _, _) => self.evaluator.call(container.at, function)?,
            (None, true, _) | (None, false, Some(None)) => {
                self.evaluator.of_type(container.at, &field.ty)?
            }
            (None, false, Some(Some(default))) => self.evaluator.field(*default, &ident)?,
            (None, false, None) => {
                let may_lack = types::bare(&field.ty).is_optional && !is_read_by_function;
                return Ok(if may_lack {
                    Default::Absent
                } else {
                    Default::Required
                });
            }
        };
        Ok(value.toml()?.map_or(Default::Absent, Default::Value))
    }
}

fn dotted(table: &str, name: &str) -> String {
    match table {
        "" => name.to_owned(),
        _ => format!("{table}.{name}"),
    }
}

fn documented(field: &syn::Field) -> Result<String, String> {
    let text = prose(&field.attrs);
    match text.is_empty() {
        true => Err("it has no doc comment, so the reference has nothing to say".to_owned()),
        false => Ok(text),
    }
}

fn meaning(field: &syn::Field, choices: &str, options: &Options) -> Result<String, String> {
    let mut parts = vec![documented(field)?];
    if !choices.is_empty() {
        parts.push(choices.to_owned());
    }
    let aliases: Vec<String> = options
        .values("alias")
        .map(|name| format!("`{name}`"))
        .collect();
    if !aliases.is_empty() {
        parts.push(format!("Also called {}.", aliases.join(", ")));
    }
    Ok(parts.join(" "))
}
