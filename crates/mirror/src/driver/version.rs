//! The version of the member's server.

use std::time::Duration;

use super::hub::Hub;
use super::target::Target;
use super::wire::{Postgres, WireError};

/// Time in which the server answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Finds out the version. It stays as it was if the server does not answer: whoever attends to the member finds that out.
pub(super) async fn learn(hub: &Hub) {
    match tokio::time::timeout(PATIENCE, ask(&hub.member.target)).await {
        Ok(Ok(Some(version))) => *hub.version.lock() = Some(version),
        Ok(Ok(None)) | Err(_) => tracing::debug!("the member does not say its version"),
        Ok(Err(error)) => tracing::debug!(%error, "the member does not say its version"),
    }
}

async fn ask(member: &Target) -> Result<Option<u32>, WireError> {
    let mut session = Postgres::connect(&member.elsewhere(), "understudy mirror version").await?;
    let asked = session.query("SHOW server_version_num").await?;
    Ok(asked.value().and_then(|version| version.parse().ok()))
}
