//! Advice for operators: what they have to do where a manager does nothing by itself.

use crate::core::log::Identity;
use crate::core::manager::{Manager, Role, Why};

/// The advice for a manager in this state.
pub fn advice(manager: &Manager) -> Option<String> {
    let log =
        |log: Option<Identity>| log.map_or_else(|| "unknown".to_owned(), |log| log.to_string());
    let (what, so) = match manager.role() {
        Role::Recovering(Why::Ahead) => (
            "the member has transactions that the log has never had".to_owned(),
            OF_ANOTHER_LOG,
        ),
        Role::Recovering(Why::Diverged) => (
            "the member has answered otherwise than the primary".to_owned(),
            DECIDE,
        ),
        Role::Recovering(Why::Occupied) => (
            "the member's database has something, and does not say that it is of this mirror"
                .to_owned(),
            DECIDE,
        ),
        Role::Recovering(Why::Foreign) => (
            format!(
                "the member belongs to the log {}, and the volume has the log {}",
                log(manager.log()),
                log(manager.log_of_zones())
            ),
            OF_ANOTHER_LOG,
        ),
        Role::Recovering(Why::Mirrored) => {
            ("the member belongs to a mirror".to_owned(), OF_A_MIRROR)
        }
        _ => return None,
    };
    Some(format!("{what}, {so}"))
}

const DECIDE: &str = "so it is left as it is; find out which of both members is right, and have it kept: understudy mirror resolve --keep \
    NAME (\"Which member is right?\" in docs/products/mirror.md)";
const OF_ANOTHER_LOG: &str = "so it is left as it is; give the managers the volume of before, or see \"A log that is lost\" in \
    docs/products/mirror.md";
const OF_A_MIRROR: &str = "and what is written to it alone the other member would never get: leave single = true out, or see \
    \"One member first\" in docs/products/mirror.md";
