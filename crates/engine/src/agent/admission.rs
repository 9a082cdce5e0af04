//! Whether this node's server may open what the volume holds, and the note of the newest one that did.
//!
//! Invariant: the note is durable before a newer server is started.

use coordination::records::{EngineFacts, Record};
use dax::storage::Storage;

use super::Context;
use crate::config::Config;
use crate::error::{EngineError, Result};
use crate::recipe::Recipe;
use crate::server;
use crate::version::{Step, Version};

/// What was said of the database when it was made, and of the servers it had since.
pub(super) async fn load_facts(config: &Config, storage: &dyn Storage) -> Result<EngineFacts> {
    let facts = EngineFacts::load(storage).await?;
    facts.ok_or_else(|| {
        EngineError::Machine(format!(
            "the volume {} holds no database of this kind; create one with \"understudy init\"",
            config.cluster.volume
        ))
    })
}

/// Asks the installed server for its version, and refuses what cannot be opened by it.
///
/// # Errors
/// The volume holds a database of another server, of another page size, or of a newer version.
pub(super) async fn check(facts: &EngineFacts, recipe: &Recipe) -> Result<Option<Version>> {
    if facts.engine != recipe.name {
        return Err(EngineError::Machine(format!(
            "the volume holds a database of {}, and this node is configured for {}; set engine.kind and \
             engine.command as on the other nodes, or choose another volume",
            facts.engine, recipe.name
        )));
    }
    if facts.page_bytes != recipe.page_bytes {
        return Err(EngineError::Machine(format!(
            "the database has pages of {} bytes, and this node is configured for {}; set the page size as it was \
             when the database was made",
            facts.page_bytes, recipe.page_bytes
        )));
    }
    let installed = server::version(recipe).await?;
    if let (Some(installed), Some(before)) = (&installed, newest(facts))
        && installed.after(&before) == Step::Down
    {
        return Err(EngineError::Machine(format!(
            "{} {before} has run on the volume, and {installed} is installed here: an older version cannot read \
             what a newer one wrote; install {before} or newer on this node",
            facts.engine
        )));
    }
    Ok(installed)
}

/// As [`check`], with what the volume says now.
pub(super) async fn admit(context: &Context, storage: &dyn Storage) -> Result<Option<Version>> {
    let facts = load_facts(&context.config, storage).await?;
    let installed = check(&facts, &context.recipe).await?;
    *context.facts.lock() = facts;
    Ok(installed)
}

/// The owner's server will run: from now on an older one is refused.
pub(super) async fn note(
    context: &Context,
    storage: &dyn Storage,
    installed: Option<&Version>,
) -> Result<()> {
    let mut facts = context.facts.lock().clone();
    let before = newest(&facts);
    let Some(installed) = installed.filter(|installed| before.as_ref() < Some(*installed)) else {
        return Ok(());
    };
    if let Some(before) = before.filter(|before| installed.after(before) == Step::Up) {
        tracing::warn!(
            %before,
            now = %installed,
            "a newer version of {} opens the database: nodes that have the older one can no longer take over, and the \
             server's own upgrade program may have to be run",
            facts.engine
        );
    }
    facts.version = Some(installed.to_string());
    facts.store(storage).await?;
    *context.facts.lock() = facts;
    Ok(())
}

fn newest(facts: &EngineFacts) -> Option<Version> {
    facts.version.as_deref().and_then(|text| text.parse().ok())
}
