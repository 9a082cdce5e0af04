//! `understudy node`: the agent of one node.

use node::config::Config;

use crate::cli;
use crate::exit::Code;

/// Runs the agent until it is asked to end.
pub async fn run(args: cli::Node) -> anyhow::Result<Code> {
    let config = Config::load(&args.config)?;
    let asked_to_end = super::asked_to_end(args.until_stdin_closes);
    Box::pin(node::agent::run(config, asked_to_end)).await?;
    Ok(Code::Ok)
}
