//! `understudy node`: the agent of one node.

use node::config::Config;

use crate::cli;
use crate::exit::Code;

/// Runs the agent until it is asked to end.
pub async fn run(args: cli::Node) -> anyhow::Result<Code> {
    let config = Config::load(&args.config)?;
    let asked_to_end = super::asked_to_end(args.until_stdin_closes);
    // The command itself runs on the main thread, which is none of the runtime's workers: whatever wakes
    // the agent would switch threads, and what the agent wakes would switch back.
    let agent = tokio::spawn(Box::pin(node::agent::run(config, asked_to_end)));
    match agent.await {
        Ok(ended) => ended?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
    Ok(Code::Ok)
}
