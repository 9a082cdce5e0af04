//! What tables of the cluster say in the same words.

use coordination::records::Control;

use super::history::utc;

/// `15.6 (Debian 15.6-1)` is long.
pub(super) fn version_number(version: &str) -> &str {
    version.split(' ').next().unwrap_or(version)
}

/// What operators should not forget.
pub(super) fn notes(control: &Control) -> String {
    let mut out = String::new();
    if let Some(paused) = &control.paused {
        let reason = paused
            .reason
            .as_ref()
            .map_or(String::new(), |r| format!(": {r}"));
        let since = utc(paused.since_unix_ms);
        out += &format!(
            " PAUSED since {since} UTC by {}{reason}; nobody takes over by itself\n",
            paused.by
        );
    }
    if let Some(planned) = &control.scheduled_switchover {
        let to = planned
            .to
            .as_ref()
            .map_or(String::new(), |to| format!(" to {to}"));
        out += &format!(
            " Switchover scheduled at: {} UTC{to}, by {}\n",
            utc(planned.at_unix_ms),
            planned.by
        );
    }
    out
}
