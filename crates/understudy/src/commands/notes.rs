//! What tables of the cluster say in the same words.

use std::time::Duration;

use coordination::records::{Cluster, Control, Member, Role, unix_ms as now_ms};

use super::history::utc;

/// `15.6 (Debian 15.6-1)` is long.
pub(super) fn version_number(version: &str) -> &str {
    version.split(' ').next().unwrap_or(version)
}

/// How long ago that was, by this machine's clock.
pub(super) fn ago(unix_ms: u64) -> String {
    let past = Duration::from_secs(now_ms().saturating_sub(unix_ms) / 1000);
    format!(" for {}", humantime::format_duration(past))
}

/// When something is kept no longer, by this machine's clock.
pub(super) fn until(unix_ms: u64) -> String {
    match unix_ms.saturating_sub(now_ms()) / 1000 {
        0 => "expired".to_owned(),
        left => format!(
            "expires in {}",
            humantime::format_duration(Duration::from_secs(left))
        ),
    }
}

/// Warnings about single nodes: a standby that would serve otherwise than the active does.
pub(super) fn member_notes<'a>(
    control: &Control,
    cluster: Option<&Cluster>,
    members: impl Iterator<Item = &'a Member>,
) -> String {
    let volume = cluster.and_then(|cluster| cluster.libraries.as_ref());
    let volume = control.libraries.as_ref().or(volume);
    let mut out = String::new();
    for member in members {
        let name = &member.name;
        if let Some(misfit) = &member.misfit {
            out += &format!(
                " {name} DOES NOT TAKE OVER: it has {misfit}, so texts may sort otherwise; \
                 see understudy accept-collations --help\n"
            );
        }
        let zones = volume.and_then(|volume| member.libraries.time_zone_difference(volume));
        if let Some(difference) = zones {
            out += &format!(" {name} has {difference}: local times may be computed otherwise\n");
        }
        let pending = &member.server.pending_restart;
        if member.role == Role::Standby && !pending.is_empty() {
            out += &format!(
                " {name} would take over without the new value of {}: understudy restart {name}\n",
                pending.join(", ")
            );
        }
    }
    out
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
            " PAUSED since {since} UTC by {}{reason}; no standby takes over by itself\n",
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
