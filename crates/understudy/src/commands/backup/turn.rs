//! Whose turn it is to archive, where several nodes could (pure).
//!
//! ```text
//! another one archives ── nothing of it for 30 s, 60 s on the active ──▶ it is ours
//!        │  ▲
//!        │  └─ the claim was taken from us
//!        └──── it is on the active, and we are not ──▶ it is ours
//! ```
//!
//! Two that begin at the same time take the claim from each other once; the record then shows one of them to the other.

use std::time::Duration;

use coordination::records::BackupState;

/// After how long without a sign of life others go on.
const SILENCE: Duration = Duration::from_secs(30);

/// For so long who lost the claim leaves it to whom it went.
pub(super) const LATELY: Duration = Duration::from_secs(30);

/// True if it is the turn of `me`.
///
/// `seen` is what whoever archives last said, `silent` for how long it has said nothing else; `was_taken` if the claim was taken
/// from us [lately](LATELY).
pub(super) fn is_ours(
    me: &str,
    is_active: bool,
    seen: Option<&BackupState>,
    silent: Duration,
    was_taken: bool,
) -> bool {
    let patience = match is_active {
        true => 2 * SILENCE,
        false => SILENCE,
    };
    match seen {
        None => !is_active || silent >= patience,
        Some(state) if state.by == me => !was_taken || silent >= patience,
        Some(state) if state.by_active && !is_active && !was_taken => true,
        Some(_) => silent >= patience,
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;

    use super::*;

    fn state(by: &str, by_active: bool) -> BackupState {
        BackupState {
            name: NodeName::new("backup-archive").unwrap(),
            by: by.to_owned(),
            by_active,
            beat: 1,
            repository: "/b".to_owned(),
            image: None,
            image_unix_ms: None,
            archived: None,
            archived_unix_ms: None,
            drill_unix_ms: None,
            trouble: None,
        }
    }

    #[test]
    fn a_standby_goes_first_and_who_is_silent_is_followed() {
        let now = Duration::ZERO;
        assert!(is_ours("a", false, None, now, false));
        assert!(!is_ours("a", true, None, now, false), "the active last");
        assert!(is_ours("a", true, None, 2 * SILENCE, false));
        let other = state("b", false);
        assert!(!is_ours("a", false, Some(&other), now, false));
        assert!(is_ours("a", false, Some(&other), SILENCE, false));
        assert!(!is_ours("a", true, Some(&other), SILENCE, false));
        let active = state("b", true);
        assert!(is_ours("a", false, Some(&active), now, false));
        assert!(
            !is_ours("a", false, Some(&active), now, true),
            "not in turns"
        );
        let own = state("a", false);
        assert!(is_ours("a", false, Some(&own), now, false), "started again");
        assert!(
            !is_ours("a", false, Some(&own), now, true),
            "taken: the other one will say so"
        );
    }
}
