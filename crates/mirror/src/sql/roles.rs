//! Passwords of roles. What a server keeps of one differs each time, so the manager makes it once, for both members: clients can
//! prove to one member what they have proved to the other, and the log has no password.

use pg_query::protobuf::{self, Token, node::Node as Tree};
use protocol::scram::Verifier;

use super::definition::definition;
use super::plan::Plan;
use super::template::{FIRST_HOLE, Template};
use super::{Result, unmirrored};

/// Plans `CREATE ROLE` and `ALTER ROLE`.
pub fn plan(text: &str, options: &[protobuf::Node]) -> Result<Plan> {
    let mut planned = definition(text);
    let Some((password, location)) = options.iter().find_map(password) else {
        return Ok(planned);
    };
    if is_kept_password(password) {
        return Ok(planned);
    }
    let literal = literal_after(text, location).filter(|_| !Template::clashes(text));
    let (Some((start, end)), Plan::Write(write)) = (literal, &mut planned) else {
        return Err(unmirrored(
            "this password cannot be mirrored",
            "Where it is in the statement cannot be told.",
            "Use \\password of psql, which sends what servers keep of it.",
        ));
    };
    let marked = format!("{}${FIRST_HOLE}{}", &text[..start], &text[end..]);
    write.template = Template::of_marked(&marked);
    write.password = Some(password.to_owned());
    Ok(planned)
}

/// True if a password is what servers keep of one.
pub fn is_kept_password(password: &str) -> bool {
    password.is_empty()
        || Verifier::parse(password).is_some()
        || password.len() == 35 && password.starts_with("md5")
}

fn password(option: &protobuf::Node) -> Option<(&str, usize)> {
    let Some(Tree::DefElem(element)) = &option.node else {
        return None;
    };
    let arg = element.arg.as_ref().and_then(|arg| arg.node.as_ref());
    match (element.defname.as_str(), arg) {
        ("password", Some(Tree::String(text))) => {
            Some((text.sval.as_str(), usize::try_from(element.location).ok()?))
        }
        _ => None,
    }
}

/// Where the first string after `location` begins and ends.
fn literal_after(text: &str, location: usize) -> Option<(usize, usize)> {
    let scanned = pg_query::scan(text).ok()?;
    let tokens = scanned.tokens.iter();
    let mut strings = tokens.filter(|token| token.token() == Token::Sconst);
    let found = strings.find(|token| usize::try_from(token.start).is_ok_and(|at| at > location))?;
    let (start, end) = (
        usize::try_from(found.start).ok()?,
        usize::try_from(found.end).ok()?,
    );
    (text.is_char_boundary(start) && text.is_char_boundary(end)).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::super::parts;
    use super::*;

    fn planned(text: &str) -> (String, Option<String>) {
        let options = match parts::one(text).expect("valid") {
            Some(Tree::CreateRoleStmt(role)) => role.options,
            Some(Tree::AlterRoleStmt(role)) => role.options,
            other => panic!("{other:?}"),
        };
        match plan(text, &options).expect("planned") {
            Plan::Write(write) => (write.template.fill(&["X".to_owned()]), write.password),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_password_is_replaced_by_what_servers_keep_of_it() {
        let (text, password) =
            planned("CREATE USER \"x'y\" LOGIN PASSWORD 'it''s' VALID UNTIL '2030-01-01'");
        assert_eq!(
            text,
            "CREATE USER \"x'y\" LOGIN PASSWORD X VALID UNTIL '2030-01-01'"
        );
        assert_eq!(password.as_deref(), Some("it's"));
        let (text, password) = planned("ALTER ROLE x ENCRYPTED PASSWORD E'a\\\\b' SUPERUSER");
        assert_eq!(text, "ALTER ROLE x ENCRYPTED PASSWORD X SUPERUSER");
        assert_eq!(password.as_deref(), Some("a\\b"));
    }

    #[test]
    fn what_has_none_and_what_is_kept_already_stay() {
        let scram = format!(
            "ALTER ROLE x PASSWORD 'SCRAM-SHA-256$4096:c2FsdA==${key}:{key}'",
            key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
        );
        for text in [
            "CREATE ROLE x",
            "ALTER ROLE x PASSWORD NULL",
            scram.as_str(),
        ] {
            assert_eq!(planned(text), (text.to_owned(), None));
        }
    }
}
