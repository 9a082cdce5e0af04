//! Attributes: doc comments as prose, and what serde and clap are told.

use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// Options of serde, or of clap, on an item.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    found: Vec<(String, Option<String>)>,
}

impl Options {
    /// Options in all attributes of this name, as `serde`.
    ///
    /// # Errors
    /// If the attribute is not a list of names and of names with a literal.
    pub fn of(attributes: &[Attribute], name: &str) -> Result<Options, String> {
        let mut options = Options::default();
        let attributes = attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident(name));
        for attribute in attributes {
            let parsed = attribute.parse_nested_meta(|meta| {
                let key = meta.path.get_ident().map(ToString::to_string);
                let value = match meta.input.peek(syn::Token![=]) {
                    true => literal(&meta.value()?.parse::<Expr>()?),
                    false => None,
                };
                options.found.push((key.unwrap_or_default(), value));
                Ok(())
            });
            parsed.map_err(|error| format!("#[{name}]: {error}"))?;
        }
        Ok(options)
    }

    /// Returns true if the option is there.
    pub fn has(&self, key: &str) -> bool {
        self.found.iter().any(|(name, _)| name == key)
    }

    /// Value of an option.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).next()
    }

    /// Values of an option that may be there several times.
    pub fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        let found = self.found.iter().filter(move |(name, _)| name == key);
        found.filter_map(|(_, value)| value.as_deref())
    }
}

fn literal(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// The doc comment as one line of Markdown: its first paragraphs up to a heading.
pub fn prose(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => literal(&pair.value),
            _ => None,
        });
    let lines: Vec<String> = lines.collect();
    let wanted = lines
        .iter()
        .map(|line| line.trim())
        .take_while(|line| !line.starts_with('#'));
    let words: Vec<&str> = wanted.filter(|line| !line.is_empty()).collect();
    let text = without_links(&words.join(" "));
    text.trim().to_owned()
}

/// Links to items of the code become code: they lead nowhere on a page.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        plain.push_str(before);
        let Some((name, behind)) = after.split_once("`]") else {
            return plain + "[`" + after;
        };
        plain = plain + "`" + name + "`";
        rest = match behind.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or("", |(_, behind)| behind),
            None => behind,
        };
    }
    plain + rest
}

/// Spelling of a name under serde's `rename_all`; for fields, which are in snake case, and for variants.
pub fn renamed(name: &str, rule: Option<&str>) -> String {
    let words = words(name);
    match rule {
        Some("lowercase") => words.concat(),
        Some("UPPERCASE") => words.concat().to_uppercase(),
        Some("snake_case") => words.join("_"),
        Some("kebab-case") => words.join("-"),
        Some("SCREAMING_SNAKE_CASE") => words.join("_").to_uppercase(),
        Some("camelCase") => {
            let pascal = pascal(&words);
            let (first, rest) = pascal.split_at(pascal.len().min(1));
            first.to_lowercase() + rest
        }
        Some("PascalCase") => pascal(&words),
        _ => name.to_owned(),
    }
}

fn pascal(words: &[String]) -> String {
    let capital = |word: &String| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    };
    words.iter().map(capital).collect()
}

/// Words of a name in snake or Pascal case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for character in name.chars() {
        let is_new = character == '_' || character.is_uppercase();
        if is_new && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if let (Some(word), true) = (words.last_mut(), character != '_') {
            word.extend(character.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_as_serde_does() {
        for (rule, expected) in [
            (None, "VerifyCa"),
            (Some("lowercase"), "verifyca"),
            (Some("snake_case"), "verify_ca"),
            (Some("kebab-case"), "verify-ca"),
            (Some("camelCase"), "verifyCa"),
            (Some("SCREAMING_SNAKE_CASE"), "VERIFY_CA"),
        ] {
            assert_eq!(renamed("VerifyCa", rule), expected);
        }
        assert_eq!(renamed("pool_size", Some("camelCase")), "poolSize");
    }

    #[test]
    fn comments_become_prose() {
        let item: syn::ItemFn = syn::parse_str(
            "/// Size of [`Pool`], as\n/// [`Rules`](x::Rules) say.\n///\n/// More.\n/// # Errors\n/// None.\nfn a() {}",
        )
        .unwrap();
        assert_eq!(prose(&item.attrs), "Size of `Pool`, as `Rules` say. More.");
    }

    #[test]
    fn options_have_values() {
        let item: syn::ItemFn = syn::parse_str(
            "#[serde(default = \"f\", flatten)] #[other(x)] #[serde(rename = \"y\")] fn a() {}",
        )
        .unwrap();
        let options = Options::of(&item.attrs, "serde").unwrap();
        assert_eq!(options.value("default"), Some("f"));
        assert!(options.has("flatten") && options.has("rename") && !options.has("x"));
    }
}
