//! `understudy node`: the agent of one node, and its HTTP interface.

use node::agent::Agent;
use node::config::Config;
use operations::rest::{Facts, Rest};

use super::registry::AnyConfig;
use crate::cli;
use crate::exit::Code;

/// Runs the agent until it is asked to end.
pub async fn run(args: cli::Node) -> anyhow::Result<Code> {
    let asked_to_end = super::asked_to_end(args.until_stdin_closes);
    // The command itself runs on the main thread, which is none of the runtime's workers: whatever wakes
    // the agent would switch threads, and what the agent wakes would switch back.
    let config = AnyConfig::load(&args.config)?;
    let has_proxy = config.has_proxy();
    let agent = match config {
        AnyConfig::Postgres(config) => tokio::spawn(Box::pin(serve(*config, asked_to_end))),
        #[cfg(feature = "engine")]
        AnyConfig::Engine(config) => {
            tokio::spawn(Box::pin(super::hosted::run(*config, asked_to_end)))
        }
    };
    let proxy = async {
        match has_proxy {
            #[cfg(feature = "proxy")]
            true => super::proxy::beside_agent(args.config).await,
            #[cfg(not(feature = "proxy"))]
            true => {
                tracing::error!("[proxy] has no effect: this program was built without the proxy");
                std::future::pending().await
            }
            false => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = agent => ended,
        never = proxy => match never {},
    };
    match ended {
        Ok(ended) => ended?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
    Ok(Code::Ok)
}

async fn serve(
    config: Config,
    asked_to_end: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let (rest, cluster) = (config.rest.clone(), config.cluster.clone());
    let bin = config.postgres.bin.clone();
    let agent = Agent::bind(config).await?;
    let facts = Facts {
        scope: cluster.volume.to_string(),
        node: cluster.name.to_string(),
        server_version: agent.server_version(),
        bin,
    };
    let _rest = Rest::bind(
        &rest,
        &cluster,
        facts,
        agent.party().clone(),
        agent.handler(),
    )
    .await?;
    Ok(agent.run(asked_to_end).await?)
}
