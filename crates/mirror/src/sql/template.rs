//! A text with holes for values that the primary evaluates first.

use proxy::core::settings::quote_literal;

/// Parameters from here on stand for holes while a text is being made. PostgreSQL has no more than 65535.
pub const FIRST_HOLE: usize = 50_000;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Hole(usize),
}

/// A text with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

impl Template {
    /// A text without holes.
    pub fn plain(text: &str) -> Template {
        Template(vec![Piece::Text(text.to_owned())])
    }

    /// A text whose parameters from [`FIRST_HOLE`] on are holes.
    pub fn of_marked(text: &str) -> Template {
        let mut pieces = Vec::new();
        let mut rest = text;
        let mut kept = String::new();
        while let Some(at) = rest.find("$5") {
            let digits = rest[at + 1..]
                .bytes()
                .take_while(u8::is_ascii_digit)
                .count();
            let number: usize = rest[at + 1..at + 1 + digits].parse().unwrap_or(0);
            kept.push_str(&rest[..at]);
            if digits == 5 && number >= FIRST_HOLE {
                pieces.push(Piece::Text(std::mem::take(&mut kept)));
                pieces.push(Piece::Hole(number - FIRST_HOLE));
            } else {
                kept.push_str(&rest[at..at + 1 + digits]);
            }
            rest = &rest[at + 1 + digits..];
        }
        kept.push_str(rest);
        pieces.push(Piece::Text(kept));
        Template(pieces)
    }

    /// True if a text may not be made into a template: it has what stands for holes already.
    pub fn clashes(text: &str) -> bool {
        text.contains("$5") && Template::of_marked(text).0.len() > 1
    }

    /// The text itself, if it has no holes.
    pub fn text(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text with `values` in its holes: literals as [`substitute`] makes them.
    pub fn fill(&self, values: &[String]) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Hole(at) => text.push_str(values.get(*at).map_or("NULL", String::as_str)),
            }
        }
        text
    }

    /// The same with `more` behind it.
    pub fn append(&mut self, more: &str) {
        self.0.push(Piece::Text(more.to_owned()));
        if let [Piece::Text(first), Piece::Text(second)] = self.0.as_mut_slice() {
            first.push_str(second);
            self.0.pop();
        }
    }
}

/// What gives the text of a value, which is read as the same value whatever the settings are. Written by other styles than ISO, a
/// time has its zone's abbreviation, which may stand for several zones.
pub fn as_text(value: &str, has_other_times: bool) -> String {
    match has_other_times {
        true => format!("understudy_mirror.plain({value})"),
        false => format!("{value}::text"),
    }
}

/// The statement that evaluates `needs`, each of them once: it answers one row, with each value as text and its type after it.
pub fn question(needs: &[String], has_other_times: bool) -> String {
    let outer: Vec<String> = (0..needs.len())
        .map(|at| {
            let value = as_text(&format!("v{at}"), has_other_times);
            format!("{value}, pg_catalog.pg_typeof(v{at})::text")
        })
        .collect();
    let inner: Vec<String> = needs
        .iter()
        .enumerate()
        .map(|(at, need)| format!("({need}) AS v{at}"))
        .collect();
    format!(
        "SELECT {} FROM (SELECT {} OFFSET 0) AS understudy_needs",
        outer.join(", "),
        inner.join(", ")
    )
}

/// A literal for a value and its type.
pub fn substitute(value: Option<&str>, type_name: &str) -> String {
    match value {
        None => format!("CAST(NULL AS {type_name})"),
        Some(value) => format!("CAST({} AS {type_name})", quote_literal(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_and_other_parameters_stay() {
        let template = Template::of_marked("SELECT $5, $50001, '$500', $50000");
        let values = ["a".to_owned(), "b".to_owned()];
        assert_eq!(template.fill(&values), "SELECT $5, b, '$500', a");
        assert_eq!(Template::of_marked("SELECT $5").text(), Some("SELECT $5"));
        assert!(Template::clashes("SELECT '$50000'") && !Template::clashes("SELECT $5"));
    }

    #[test]
    fn each_need_is_evaluated_once() {
        let needs = ["now()".to_owned(), "nextval('s')".to_owned()];
        let text = question(&needs, false);
        assert_eq!(text.matches("nextval").count(), 1);
        assert!(text.starts_with("SELECT v0::text, pg_catalog.pg_typeof(v0)::text, v1"));
        let text = question(&needs, true);
        assert!(text.starts_with("SELECT understudy_mirror.plain(v0), pg_catalog.pg_typeof(v0)"));
        assert_eq!(substitute(Some("it's"), "text"), "CAST('it''s' AS text)");
        assert_eq!(substitute(None, "integer"), "CAST(NULL AS integer)");
    }
}
