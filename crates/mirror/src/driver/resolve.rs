//! An operator's decision which of both members is right.
//!
//! ```text
//!   keep the primary's ──▶ the other manager replaces its member
//!   keep the one that is set aside ──▶ the log gets another name, which it takes; so the other one is of another log, and replaced
//! ```
//!
//! Invariant: the log has its new name only when the member that is kept has it as well; until then everything is as before. Whoever is
//! primary meanwhile has lost its epoch, and belongs to a log that is not there any more.

use std::io;
use std::time::Duration;

use dax::tls::Tls;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::command::Status;
use super::peer::{Question, ask};
use crate::core::manager::Role;

/// A manager that was primary notices within this time that it is not any more.
const PATIENCE: Duration = Duration::from_secs(20);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A decision that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The manager whose member is kept.
    pub keep: String,
    /// The manager that replaces its member.
    pub replaced: String,
    /// The member that is kept was not the primary's: transactions that it lacks are only in what is replaced.
    pub adopted: bool,
}

/// Has the member of the manager called `keep` kept, and the other one replaced; `addresses` are those of both managers.
///
/// # Errors
/// If a manager cannot be reached, or refuses.
pub async fn resolve(
    addresses: [&str; 2],
    tls: Option<&Tls>,
    keep: &str,
) -> io::Result<Result<Resolved, String>> {
    let mut statuses = Vec::new();
    for address in addresses {
        let told = ask(address, tls, Question::Status).await?;
        let status = told.and_then(|json| {
            serde_json::from_str::<Status>(&json).map_err(|error| error.to_string())
        });
        statuses.push(status.map_err(io::Error::other)?);
    }
    let Some(at) = statuses.iter().position(|status| status.name == keep) else {
        let names = statuses.iter().map(|status| status.name.as_str());
        let names: Vec<&str> = names.collect();
        return Ok(Err(format!(
            "no manager is called {keep}: they are {}",
            names.join(" and ")
        )));
    };
    let adopted = match statuses[at].role {
        Role::Primary => false,
        Role::Recovering(why) if why.is_set_aside() => true,
        _ => {
            return Ok(Err(format!(
                "{keep} is neither primary nor set aside: let it become primary (understudy mirror switchover), and then have it kept"
            )));
        }
    };
    if adopted && let Err(why) = ask(addresses[at], tls, Question::Adopt).await? {
        return Ok(Err(why));
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = ask(addresses[1 - at], tls, Question::Replace).await?;
        match told {
            Err(_) if adopted && Instant::now() < deadline => {}
            told => {
                return Ok(told.map(|_| Resolved {
                    keep: keep.to_owned(),
                    replaced: statuses[1 - at].name.clone(),
                    adopted,
                }));
            }
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
