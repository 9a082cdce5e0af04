//! Upkeep of a volume in `understudy status`: the scrub, and what is kept beyond the present.

use serde_json::Value;

use super::notes::ago;
use crate::demo::timeline::thousands;

/// Image and log that are kept, for the last seals and for each standby.
pub(super) fn retained_lines(retained: Option<&Value>) -> String {
    let holders = retained.and_then(Value::as_array).into_iter().flatten();
    let line = |holder: &Value| {
        let from = serde_json::from_value::<volume::lsn::Lsn>(holder["log_from"].clone());
        let log = match holder["everything"] == true {
            true => "everything, until it has attached".to_owned(),
            false => format!(
                "log from {} ({} kB) and its image",
                from.unwrap_or_default(),
                thousands(holder["log_bytes"].as_u64().unwrap_or_default() >> 10)
            ),
        };
        let who = holder["holder"].as_str().unwrap_or_default();
        format!("kept    for {who:<20}{log}\n")
    };
    holders.map(line).collect()
}

/// Progress of the scrub, or the result of the last one.
pub(super) fn scrub_line(scrub: Option<&Value>) -> String {
    let count = |name: &str| scrub.and_then(|s| s[name].as_u64()).unwrap_or_default();
    let done = format!(
        "{} blocks compared, {} copies sent again",
        thousands(count("blocks")),
        thousands(count("mended"))
    );
    let unreadable = match count("unreadable_blocks") {
        0 => String::new(),
        n => format!(", {} WITHOUT AN INTACT COPY", thousands(n)),
    };
    let running = scrub.is_some_and(|s| s["running"] == true);
    match (running, count("completed_unix_ms")) {
        (true, _) => format!("scrub   running: {done}{unreadable}\n"),
        (false, 0) => String::new(),
        (false, at) => format!("scrub   complete{}: {done}{unreadable}\n", ago(at)),
    }
}
