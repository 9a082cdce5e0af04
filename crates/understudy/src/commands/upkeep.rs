//! Upkeep of a volume in `understudy status`: the scrub, and what is kept beyond the present.

use serde_json::Value;

use super::notes::{ago, until};
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

/// Time that it took to be protected again.
pub(super) fn restored(protection: Option<&Value>) -> String {
    let took = protection.and_then(|p| p["restored_after_ms"].as_u64());
    took.map_or(String::new(), |ms| {
        format!(", restored within {} ms", thousands(ms))
    })
}

/// Images of the past, and pins.
pub(super) fn past_lines(past: Option<&Value>) -> String {
    let all = |name: &str| past.and_then(|p| p[name].as_array()).cloned();
    let (images, pins) = (
        all("images").unwrap_or_default(),
        all("pins").unwrap_or_default(),
    );
    let mut out = String::new();
    if let Some(oldest) = images.first() {
        let at = ago(oldest["unix_ms"].as_u64().unwrap_or_default());
        let kb = past
            .and_then(|p| p["used_bytes"].as_u64())
            .unwrap_or_default()
            >> 10;
        let (count, kb) = (thousands(images.len() as u64), thousands(kb));
        out += &format!("past    {count} images, the oldest{at}: about {kb} kB in each zone\n");
    }
    for pin in &pins {
        let of = |key: &str| pin[key].as_str().unwrap_or_default().to_owned();
        let (state, generation) = (of("state"), of("generation"));
        out += &format!(
            "pin     {} ({state}): image {generation}, {}\n",
            of("name"),
            of("purpose")
        );
    }
    for branch in all("branches").unwrap_or_default() {
        let name = branch["name"].as_str().unwrap_or_default();
        let used = branch["used_bytes"].as_u64();
        let used = used.map_or(String::new(), |bytes| {
            format!(": {} kB of its own in each zone", thousands(bytes >> 10))
        });
        let state = match branch["current"] == true {
            true => "current",
            false => branch["state"].as_str().unwrap_or_default(),
        };
        let kept = branch["expires_unix_ms"].as_u64();
        let kept = kept.map_or(String::new(), |at| format!(", {}", until(at)));
        out += &format!("branch  {name} ({state}){used}{kept}\n");
    }
    out
}

/// Progress of the copy of an image from a repository.
pub(super) fn filling_line(filling: Option<&Value>) -> String {
    let Some(filling) = filling.filter(|filling| !filling.is_null()) else {
        return String::new();
    };
    let mb = |key: &str| thousands(filling[key].as_u64().unwrap_or_default() >> 20);
    let left = filling["left_ms"].as_u64();
    let left = left.map_or(String::new(), |ms| {
        let left = std::time::Duration::from_secs(ms / 1000);
        format!(", {} to go", humantime::format_duration(left))
    });
    let (done, of) = (mb("done_bytes"), mb("size_bytes"));
    format!("filling {done} of {of} MB of the repository's image are in the zones{left}\n")
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_from_a_repository_is_told_while_it_goes_on() {
        assert_eq!(filling_line(Some(&Value::Null)), "");
        let filling =
            json!({ "done_bytes": 10 << 20, "size_bytes": 2048_u64 << 20, "left_ms": 61_500 });
        let told = filling_line(Some(&filling));
        let expected =
            "filling 10 of 2,048 MB of the repository's image are in the zones, 1m 1s to go\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn the_past_is_told_if_there_is_one() {
        assert_eq!(past_lines(None), "");
        assert_eq!(
            past_lines(Some(&json!({ "images": [], "used_bytes": 0, "pins": [] }))),
            ""
        );
        let told = past_lines(Some(&json!({
            "images": [{ "generation": "1/g3", "unix_ms": 1 }, { "generation": "1/g4", "unix_ms": 2 }],
            "used_bytes": 2_048_000,
            "pins": [{ "name": "x", "purpose": "a try", "state": "kept", "generation": "1/g3" }],
            "branches": [
                { "name": "main", "state": "ready", "current": true, "used_bytes": 4_096_000 },
                { "name": "test", "state": "making", "current": false, "expires_unix_ms": 1 },
            ],
        })));
        assert!(told.starts_with("past    2 images, the oldest"), "{told}");
        assert!(told.contains("about 2,000 kB in each zone\n"), "{told}");
        let last = "pin     x (kept): image 1/g3, a try\n\
            branch  main (current): 4,000 kB of its own in each zone\n\
            branch  test (making), expired\n";
        assert!(told.ends_with(last), "{told}");
    }
}
