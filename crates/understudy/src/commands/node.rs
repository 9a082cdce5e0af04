//! `understudy node`: the agent of one node, and its HTTP interface.

use std::convert::Infallible;
use std::path::PathBuf;

use futures_util::FutureExt;
use node::agent::{Agent, AgentError};
use node::config::Config;
use operations::rest::{Facts, Rest};

use super::registry::AnyConfig;
use crate::cli;
use crate::exit::Code;

/// Runs the agent until it is asked to end.
pub async fn run(args: cli::Node) -> anyhow::Result<Code> {
    let asked_to_end = super::process::asked_to_end(args.until_stdin_closes);
    // The command itself runs on the main thread, which is none of the runtime's workers: whatever wakes
    // the agent would switch threads, and what the agent wakes would switch back.
    let config = AnyConfig::load(&args.config)?;
    let (has_proxy, has_backup) = (config.has_proxy(), config.has_backup());
    let agent = match config {
        AnyConfig::Postgres(config) => tokio::spawn(Box::pin(serve(*config, asked_to_end))),
        #[cfg(feature = "engine")]
        AnyConfig::Engine(config) => {
            tokio::spawn(Box::pin(super::hosted::run(*config, asked_to_end)))
        }
    };
    let (is_proxy, is_backup) = (cfg!(feature = "proxy"), cfg!(feature = "backup"));
    let file = args.config;
    let proxy = beside_if(has_proxy, is_proxy, &["proxy"], file.clone());
    let archiver = beside_if(has_backup, is_backup, &["backup", "archive"], file);
    let ended = tokio::select! {
        ended = agent => ended,
        never = proxy => match never {},
        never = archiver => match never {},
    };
    match ended {
        Ok(ended) => ended?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
    Ok(Code::Ok)
}

/// Runs a command beside the agent, if the configuration wants it and the program has it.
async fn beside_if(is_wanted: bool, is_built: bool, command: &[&str], file: PathBuf) -> Infallible {
    match (is_wanted, is_built) {
        (true, true) => super::beside::run(command, file).await,
        (true, false) => {
            let table = command[0];
            tracing::error!("[{table}] has no effect: this program was built without it");
            std::future::pending().await
        }
        (false, _) => std::future::pending().await,
    }
}

async fn serve(
    config: Config,
    asked_to_end: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let (rest, cluster) = (config.rest.clone(), config.cluster.clone());
    let bin = config.postgres.bin.clone();
    let asked_to_end = asked_to_end.shared();
    loop {
        let agent = Agent::bind(config.clone()).await?;
        let facts = Facts {
            scope: cluster.volume.to_string(),
            node: cluster.name.to_string(),
            server_version: agent.server_version(),
            bin: bin.clone(),
        };
        let (party, handler) = (agent.party().clone(), agent.handler());
        let _rest = Rest::bind(&rest, &cluster, facts, party, handler).await?;
        match agent.run(asked_to_end.clone()).await {
            Err(AgentError::Moved(volume)) => {
                tracing::info!(%volume, "the agent goes on in another volume")
            }
            ended => return Ok(ended?),
        }
    }
}
