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

const OF_ANOTHER_LOG: &str = "so nobody works with it; give the managers the volume of before, or see \"A log that is lost\" in \
    docs/products/mirror.md";
const OF_A_MIRROR: &str = "and what is written to it alone the other member would never get: leave single = true out, or see \
    \"One member first\" in docs/products/mirror.md";
