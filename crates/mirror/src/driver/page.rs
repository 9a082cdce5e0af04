//! The status page of a manager: `/ui`, for people with a browser. It looks as that of a node does ([`page`]).
//!
//! Pure but for asking the other manager: what both say of themselves becomes HTML, anew every [`EVERY_S`] seconds. Invariant: what
//! comes from elsewhere is written as text, never as markup.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use page::text;

use super::command::Status;
use super::hub::Hub;
use super::peer::{Question, ask};
use crate::core::manager::{Role, Why};
use crate::core::verifying::Verified;

/// The page is loaded anew after so many seconds.
const EVERY_S: u32 = 2;
/// A manager that stands still does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The page now.
pub async fn page(hub: &Arc<Hub>) -> String {
    let other = match hub.config.single {
        true => None,
        false => ask_other(hub).await,
    };
    html(&super::command::status(hub), other.as_ref())
}

/// What the other manager says of itself, if it answers.
async fn ask_other(hub: &Hub) -> Option<Status> {
    let tls = hub.protection.peers.as_ref();
    let asked = ask(&hub.config.peer, tls, Question::Status);
    let told = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    serde_json::from_str(&told.ok()?.ok()?.ok()?).ok()
}

/// What a person is to know first: how good it is, and a sentence.
fn verdict(own: &Status, other: Option<&Status>) -> (&'static str, String) {
    if own.role == Role::Single {
        let sentence = format!(
            "{} serves clients of its only member, and nothing is mirrored.",
            own.name
        );
        return ("warn", sentence);
    }
    let all = || std::iter::once(own).chain(other);
    let Some(primary) = all().find(|one| one.role == Role::Primary) else {
        return ("bad", "Nobody serves clients.".to_owned());
    };
    if let Some(one) = all().find(|one| one.difference.is_some() && one.role != Role::Primary) {
        return (
            "bad",
            format!("The member of {} differs, and is set aside.", one.name),
        );
    }
    if primary.verified.as_ref().is_some_and(|one| !one.equal) {
        let sentence = "The members were compared, and differ.";
        return ("bad", sentence.to_owned());
    }
    match primary.has_standby {
        true => (
            "ok",
            format!("{} serves clients, and there is a standby.", primary.name),
        ),
        false => (
            "warn",
            format!(
                "{} serves clients, and nobody could take over.",
                primary.name
            ),
        ),
    }
}

fn state(role: Role) -> (&'static str, &'static str) {
    match role {
        Role::Primary => ("ok", "primary"),
        Role::Standby => ("ok", "standby"),
        Role::Single => ("warn", "the only one"),
        Role::Recovering(why) => match why {
            Why::Starting => ("warn", "starting"),
            Why::NoMember => ("bad", "its member does not answer"),
            Why::CatchingUp => ("warn", "catching up"),
            Why::TakingOver => ("warn", "taking over"),
            Why::Behind => ("warn", "needs a state transfer"),
            Why::Diverged => ("bad", "diverged"),
            Why::Ahead => ("bad", "has what the log never had"),
            Why::Foreign => ("bad", "belongs to another log"),
            Why::Replaced => ("warn", "replaced"),
            Why::Mirrored => ("bad", "belongs to a mirror"),
            Why::Occupied => ("bad", "has something of its own"),
        },
    }
}

/// What a manager says of itself, by name.
fn facts(status: &Status) -> Vec<(&'static str, String)> {
    let number =
        |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), |one| one.to_string());
    let mut facts = vec![
        ("log ends at", status.logged.to_string()),
        ("member has", number(status.applied)),
    ];
    let lag = |applied: u64| status.logged.saturating_sub(applied).to_string();
    if let Some(applied) = status.applied {
        facts.push(("member lacks", lag(applied)));
    }
    if status.role == Role::Primary {
        facts.push(("epoch", number(status.epoch.map(u64::from))));
        facts.push((
            "standby lacks",
            status
                .other_applied
                .map_or_else(|| "unknown".to_owned(), lag),
        ));
        facts.push(("sessions of clients", status.clients.to_string()));
        let acknowledged = match status.ack {
            crate::core::manager::CommitAck::Both => "both members have committed",
            crate::core::manager::CommitAck::Durable => "the log is durable and one has committed",
        };
        facts.push(("acknowledged when", acknowledged.to_owned()));
    }
    if let Some(version) = status.server_version_num {
        facts.push(("PostgreSQL", super::upgrade::release(version)));
    }
    if let Some(verified) = &status.verified {
        facts.push(("compared", compared(verified)));
    }
    if let Some(filling) = &status.filling {
        facts.push(("state transfer", filling.clone()));
    }
    facts
}

/// The last comparison, without names and values: whoever opens the page has proved nothing.
fn compared(verified: &Verified) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(verified.unix_ms);
    let at = humantime::format_rfc3339_seconds(at);
    let (tables, rows) = (verified.tables, verified.rows);
    match verified.equal {
        true => format!("equal at {at}: {tables} tables with {rows} rows"),
        false => format!("different at {at}; understudy mirror status says where"),
    }
}

/// At which transaction a member differs, without the statement: whoever opens the page has proved nothing.
fn place(difference: &str) -> &str {
    difference.split(':').next().unwrap_or_default()
}

/// Advice on a state. Any other reason has texts of the member's, which may name tables and values.
fn advised(role: Role, text: &str) -> String {
    match role {
        Role::Recovering(why) if why.is_set_aside() || why == Why::Mirrored => text.to_owned(),
        _ => "It does not get on; understudy mirror status says why.".to_owned(),
    }
}

fn card(status: Option<&Status>) -> String {
    let Some(status) = status else {
        return "<li class=\"card quiet\"><div class=\"top\"><h3>the other manager</h3>\
                <p class=\"word warn\">does not answer</p></div></li>"
            .to_owned();
    };
    let (tone, word) = state(status.role);
    let facts: String = facts(status)
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", text(value)))
        .collect();
    let difference = status.difference.as_deref().map(|why| {
        let at = place(why);
        format!("It differs at {at}; understudy mirror status says what it has done there.")
    });
    let unverified = status.unverified.is_some().then_some(
        "The members cannot be compared now; understudy mirror status says why.".to_owned(),
    );
    let advice = status
        .advice
        .as_deref()
        .map(|text| advised(status.role, text));
    let notes: String = difference
        .iter()
        .chain(&advice)
        .chain(&unverified)
        .map(|note| format!("<p class=\"note bad\">{}</p>", text(note)))
        .collect();
    format!(
        "<li class=\"card\"><div class=\"top\"><h3>{}</h3><p class=\"word {tone}\">{word}</p></div>\
         <dl class=\"facts\">{facts}</dl>{notes}</li>",
        text(&status.name)
    )
}

/// What both managers say of themselves, the one that is asked first.
fn html(own: &Status, other: Option<&Status>) -> String {
    let (tone, sentence) = verdict(own, other);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"refresh\" content=\"{EVERY_S}\">\
         <title>Understudy: mirror</title><link rel=\"icon\" href=\"ui/icon.svg\" type=\"image/svg+xml\">\
         <link rel=\"stylesheet\" href=\"ui/page.css\"></head><body><header><p class=\"brand\">Understudy \
         <span>mirror</span></p></header><main><div class=\"verdict {tone}\"><h1>{}</h1></div><section><h2>Managers</h2>\
         <ul class=\"cards\">{}{}</ul></section></main><footer><p><a href=\"metrics\">metrics</a> for Prometheus.</p>\
         </footer></body></html>\n",
        text(&sentence),
        card(Some(own)),
        match own.role {
            Role::Single => String::new(),
            _ => card(other),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::command::tests::status;

    #[test]
    fn it_says_who_serves_and_how_far_the_standby_is() {
        let (north, south) = (
            status("north", Role::Primary),
            status("south", Role::Standby),
        );
        let page = html(&north, Some(&south));
        assert!(page.contains("north serves clients, and there is a standby."));
        assert!(page.contains("<dt>standby lacks</dt><dd>20</dd>"));
        assert!(html(&south, None).contains("Nobody serves clients."));
    }

    /// Anybody could read what clients write.
    // hazard: MIRROR-21
    #[test]
    fn where_a_member_differs_is_told_without_the_statement() {
        let mut south = status("south", Role::Recovering(Why::Diverged));
        south.difference = Some("transaction 5: SELECT 'secret'".to_owned());
        south.filling = Some("restoring, 12 s".to_owned());
        let page = html(&status("north", Role::Primary), Some(&south));
        assert!(page.contains("The member of south differs"));
        assert!(page.contains("It differs at transaction 5;") && !page.contains("secret"));
        assert!(page.contains("<dt>state transfer</dt><dd>restoring, 12 s</dd>"));
    }

    /// Names of tables are nobody's business either.
    #[test]
    fn members_that_were_compared_are_told_as_equal_or_not() {
        let mut north = status("north", Role::Primary);
        let mut verified = Verified {
            unix_ms: 1_700_000_000_000,
            equal: true,
            transaction: 7,
            tables: 2,
            rows: 30,
            differences: Vec::new(),
        };
        north.verified = Some(verified.clone());
        let page = html(&north, None);
        assert!(page.contains("<dd>equal at 2023-11-14T22:13:20Z: 2 tables with 30 rows</dd>"));
        verified.equal = false;
        verified.differences = vec!["table secret".to_owned()];
        north.verified = Some(verified);
        north.unverified = Some("others wait for locks of tables: secret".to_owned());
        let page = html(&north, None);
        assert!(page.contains("The members were compared, and differ."));
        assert!(page.contains("different at 2023") && !page.contains("secret"));
        assert!(page.contains("cannot be compared now; understudy mirror status says why"));
    }

    /// Reasons have what the member has said, with names of tables and roles.
    // hazard: MIRROR-21
    #[test]
    fn reasons_of_the_member_are_told_without_its_texts() {
        for role in [Role::Standby, Role::Recovering(Why::Behind)] {
            let mut south = status("south", role);
            south.advice = Some("the member cannot be filled: table secret".to_owned());
            let page = html(&status("north", Role::Primary), Some(&south));
            assert!(page.contains("does not get on") && !page.contains("secret"));
        }
    }

    #[test]
    fn what_is_to_be_done_is_told_as_text() {
        let mut south = status("south", Role::Recovering(Why::Foreign));
        south.advice = Some("give it <b>".to_owned());
        let page = html(&south, None);
        assert!(page.contains("belongs to another log"));
        assert!(page.contains("give it &lt;b&gt;") && !page.contains("<b>"));
    }
}
