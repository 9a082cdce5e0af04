//! Transactions that a statement asks about.

use proxy::core::sql::walk;
use serde_json::Value;

use super::parts;
use crate::core::record::Parameter;

/// The names of transactions that a statement asks about by `understudy_mirror.committed`, as far as they are constants or parameters.
pub fn asked(text: &str, parameters: &[Parameter]) -> Vec<String> {
    let mut asked = Vec::new();
    if !text.to_ascii_lowercase().contains("committed") {
        return asked;
    }
    walk(&parts::one(text).ok().flatten(), &mut |name, value| {
        if name == "FuncCall" {
            asked.extend(argument(value, parameters));
        }
    });
    asked
}

fn argument(call: &Value, parameters: &[Parameter]) -> Option<String> {
    let path = call["funcname"].as_array()?.iter();
    let path: Vec<&str> = path
        .filter_map(|name| name["node"]["String"]["sval"].as_str())
        .collect();
    if path != ["understudy_mirror", "committed"] {
        return None;
    }
    let mut argument = &call["args"][0]["node"];
    while argument["TypeCast"].is_object() {
        argument = &argument["TypeCast"]["arg"]["node"];
    }
    if let Some(number) = argument["ParamRef"]["number"].as_u64() {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        // Of a text the binary format is the same.
        let value = parameters.get(at)?.value.clone()?;
        return String::from_utf8(value).ok();
    }
    let constant = argument["AConst"]["val"]["Sval"]["sval"].as_str();
    constant.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_and_parameters_are_known() {
        let parameters = [Parameter {
            type_oid: 25,
            is_binary: true,
            value: Some(b"5-6".to_vec()),
        }];
        for (text, wanted) in [
            ("SELECT understudy_mirror.committed('1-2')", vec!["1-2"]),
            (
                "select UNDERSTUDY_MIRROR.Committed('1-2'::text) AS c",
                vec!["1-2"],
            ),
            ("SELECT understudy_mirror.committed($1)", vec!["5-6"]),
            (
                "SELECT understudy_mirror.committed($1::varchar), understudy_mirror.committed('7-8')",
                vec!["5-6", "7-8"],
            ),
            ("SELECT understudy_mirror.committed($2)", vec![]),
            ("SELECT understudy_mirror.committed(t.a) FROM t", vec![]),
            (
                "SELECT committed('1-2'), 'understudy_mirror.committed(1)'",
                vec![],
            ),
        ] {
            assert_eq!(asked(text, &parameters), wanted, "{text}");
        }
    }
}
