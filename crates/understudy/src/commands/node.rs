//! `understudy node`: the agent of one node.

use node::config::Config;

use crate::cli;
use crate::exit::Code;

/// Runs the agent until it is asked to end.
pub async fn run(args: cli::ConfigFile) -> anyhow::Result<Code> {
    let config = Config::load(&args.config)?;
    node::agent::run(config, super::interrupted()).await?;
    Ok(Code::Ok)
}
