//! Lines, fields and names of a file of rules.

/// A name, or another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The text without quotes.
    pub text: String,
    /// It was quoted: no word has a special meaning.
    pub is_quoted: bool,
}

/// Lines with their numbers, from 1; one that ends with a backslash goes on in the next.
pub fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        let (number, mut whole) = begun.take().unwrap_or((at + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(line) => {
                whole.push_str(line);
                begun = Some((number, whole));
            }
            None => {
                whole.push_str(line);
                lines.push((number, whole));
            }
        }
    }
    lines.extend(begun);
    lines
}

/// The fields of a line, each of them a list with commas.
///
/// # Errors
/// If a quote is not closed.
pub fn fields(line: &str) -> Result<Vec<Vec<Token>>, String> {
    let mut fields: Vec<Vec<Token>> = Vec::new();
    let mut token: Option<Token> = None;
    let mut goes_on = false;
    let mut rest = line.chars().peekable();
    let mut put = |token: &mut Option<Token>, goes_on: bool| {
        if let Some(token) = token.take() {
            match fields.last_mut() {
                Some(field) if goes_on => field.push(token),
                _ => fields.push(vec![token]),
            }
        }
    };
    while let Some(letter) = rest.next() {
        match letter {
            '#' => break,
            // As PostgreSQL: behind a blank it is one.
            ',' if token.is_none() => {}
            ',' => {
                put(&mut token, goes_on);
                goes_on = true;
            }
            letter if letter.is_whitespace() => {
                if token.is_some() {
                    put(&mut token, goes_on);
                    goes_on = false;
                }
            }
            '"' => {
                let now = token.get_or_insert_with(|| Token {
                    text: String::new(),
                    is_quoted: true,
                });
                loop {
                    match rest.next() {
                        Some('"') if rest.peek() == Some(&'"') => {
                            rest.next();
                            now.text.push('"');
                        }
                        Some('"') => break,
                        Some(letter) => now.text.push(letter),
                        None => return Err("a quote is not closed".to_owned()),
                    }
                }
            }
            letter => {
                let now = token.get_or_insert_with(|| Token {
                    text: String::new(),
                    is_quoted: false,
                });
                now.text.push(letter);
            }
        }
    }
    put(&mut token, goes_on);
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &str) -> Vec<Vec<String>> {
        let text = |token: Token| match token.is_quoted {
            true => format!("<{}>", token.text),
            false => token.text,
        };
        let fields = fields(line).expect("it is read").into_iter();
        fields
            .map(|field| field.into_iter().map(text).collect())
            .collect()
    }

    #[test]
    fn fields_are_lists_of_names() {
        assert_eq!(plain("  # nothing"), [[""; 0]; 0]);
        assert_eq!(
            plain("host a,\"b c\" , d\t\"all\"x 10.0.0.0/8 trust# why"),
            [
                vec!["host"],
                vec!["a", "<b c>"],
                vec!["d"],
                vec!["<allx>"],
                vec!["10.0.0.0/8"],
                vec!["trust"]
            ]
        );
        assert_eq!(plain("a, b,c d"), [vec!["a", "b", "c"], vec!["d"]]);
        assert_eq!(plain("\"a\"\"b\""), [["<a\"b>"]]);
        assert!(fields("host \"all").is_err());
    }

    #[test]
    fn a_backslash_joins_lines() {
        let lines = joined("a \\\nb\nc\nd\\");
        let expected = [(1, "a b"), (3, "c"), (4, "d")];
        assert_eq!(lines, expected.map(|(at, line)| (at, line.to_owned())));
    }
}
