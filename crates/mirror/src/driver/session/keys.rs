//! What a statement claims, once its parameters and values are known.

use crate::core::class::{Claims, Class, Mode};
use crate::core::record::Parameter;
use crate::sql::{KeyClaim, KeyPart, KeyValue, Write};

/// A value that was evaluated, and its type.
pub type Value = (Option<String>, String);

/// What a statement claims, now that its values are known: the whole table where a key cannot be told.
pub fn claims(write: &Write, parameters: &[Parameter], values: &[Value]) -> Claims {
    let mut claims = write.claims.clone();
    for key in &write.keys {
        let class = match key_text(key, parameters, values) {
            Some(text) => Class::Key(key.table.as_str().into(), text.into()),
            None => Class::Table(key.table.as_str().into()),
        };
        claims.add(class, key.mode);
    }
    // Whatever is written conflicts with definitions.
    if write.is_logged && claims.is_empty() {
        claims.add(Class::Database, Mode::IntentExclusive);
    }
    claims
}

fn key_text(key: &KeyClaim, parameters: &[Parameter], values: &[Value]) -> Option<String> {
    let parts = key
        .parts
        .iter()
        .map(|part| part_text(part, parameters, values));
    let parts: Option<Vec<String>> = parts.collect();
    Some(parts?.join("\u{1f}"))
}

/// A key's value, written in one way only.
fn part_text(part: &KeyPart, parameters: &[Parameter], values: &[Value]) -> Option<String> {
    let given = match &part.value {
        KeyValue::Constant(text) => text.clone(),
        KeyValue::Need(number) => values.get(*number)?.0.clone()?,
        KeyValue::Parameter(number) => {
            let parameter = parameters.get(number.checked_sub(1)?)?;
            if !fits(parameter.type_oid, &part.type_name) {
                return None;
            }
            let value = parameter.value.as_ref()?;
            match (parameter.is_binary, part.type_name.as_str()) {
                (false, _) | (true, "text" | "character varying") => {
                    String::from_utf8(value.clone()).ok()?
                }
                (true, "uuid") => value.iter().map(|byte| format!("{byte:02x}")).collect(),
                (true, _) => match value.len() {
                    2 => i16::from_be_bytes(value.as_slice().try_into().ok()?).to_string(),
                    4 => i32::from_be_bytes(value.as_slice().try_into().ok()?).to_string(),
                    8 => i64::from_be_bytes(value.as_slice().try_into().ok()?).to_string(),
                    _ => return None,
                },
            }
        }
    };
    match part.type_name.as_str() {
        "text" => Some(given),
        // What is stored may have lost them.
        "character varying" => Some(given.trim_end_matches(' ').to_owned()),
        "uuid" => {
            let digits: String = given.chars().filter(char::is_ascii_hexdigit).collect();
            (digits.len() == 32).then(|| digits.to_ascii_lowercase())
        }
        _ => given
            .trim()
            .parse::<i64>()
            .ok()
            .map(|number| number.to_string()),
    }
}

/// True if a value of this type, by its number, is compared with a key's column as it is; 0 is whatever the column is.
fn fits(type_oid: u32, type_name: &str) -> bool {
    const INT8: u32 = 20;
    const INT2: u32 = 21;
    const INT4: u32 = 23;
    const TEXT: u32 = 25;
    const UNKNOWN: u32 = 705;
    const VARCHAR: u32 = 1043;
    const UUID: u32 = 2950;
    match type_oid {
        0 | UNKNOWN => true,
        INT2 | INT4 | INT8 => matches!(type_name, "smallint" | "integer" | "bigint"),
        TEXT | VARCHAR => matches!(type_name, "text" | "character varying"),
        UUID => type_name == "uuid",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(value: KeyValue, type_name: &str) -> KeyPart {
        KeyPart {
            value,
            type_name: type_name.to_owned(),
        }
    }

    #[test]
    fn one_key_is_written_in_one_way() {
        let binary = |value: &[u8]| Parameter {
            type_oid: 0,
            is_binary: true,
            value: Some(value.to_vec()),
        };
        let told = |value: KeyValue, of: &str, parameters: &[Parameter]| {
            part_text(&part(value, of), parameters, &[])
        };
        let constant = |text: &str| KeyValue::Constant(text.to_owned());
        let seven = Some("7".to_owned());
        assert_eq!(told(constant(" +7"), "integer", &[]), seven);
        assert_eq!(told(constant("007"), "bigint", &[]), seven);
        assert_eq!(
            told(
                KeyValue::Parameter(1),
                "integer",
                &[binary(&7_i32.to_be_bytes())]
            ),
            seven
        );
        assert_eq!(
            told(
                KeyValue::Parameter(1),
                "bigint",
                &[binary(&7_i64.to_be_bytes())]
            ),
            seven
        );
        assert_eq!(told(constant("7.0"), "integer", &[]), None);
        assert_eq!(
            told(KeyValue::Parameter(2), "integer", &[binary(b"x")]),
            None
        );
        // Of eight bytes as well, and another number.
        let float = Parameter {
            type_oid: 701,
            ..binary(&7_f64.to_be_bytes())
        };
        assert_eq!(told(KeyValue::Parameter(1), "bigint", &[float]), None);
        let padded = |of: &str| told(constant("a  "), of, &[]);
        assert_eq!(padded("text").as_deref(), Some("a  "));
        assert_eq!(padded("character varying").as_deref(), Some("a"));
        let uuid = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11";
        assert_eq!(
            told(constant(uuid), "uuid", &[]).as_deref(),
            Some("a0eebc999c0b4ef8bb6d6bb9bd380a11")
        );
    }
}
