//! `understudy dev`.

use anyhow::Context;
use cassandra::server::{Cluster, Options, ServerError};

use crate::cli;
use crate::exit::{Code, Failure};
use cluster::workspace::Workspace;

/// Runs a helper until it is interrupted.
pub async fn run(command: cli::Dev) -> anyhow::Result<Code> {
    match command {
        cli::Dev::Cassandra(args) => run_cassandra(args).await,
    }
}

async fn run_cassandra(args: cli::DevCassandra) -> anyhow::Result<Code> {
    let workspace = match args.directory {
        Some(_) => None,
        None => Some(Workspace::create(None, false)?),
    };
    let directory = args
        .directory
        .or_else(|| Some(workspace.as_ref()?.path().to_owned()))
        .context("there is a directory either way")?;
    let mut options = Options::new(directory);
    options.nodes = args.nodes;
    if args.no_hints {
        options = options.without_hints();
    }
    eprintln!("Starting Apache Cassandra: {} nodes", options.nodes);
    let starting = tokio::task::spawn_blocking(move || Cluster::start(options));
    // An interrupt meanwhile ends this process, and every node with it.
    let cluster = tokio::select! {
        started = starting => started.context("the start was given up")?.map_err(judge)?,
        () = super::process::interrupted() => std::process::exit(Code::Interrupted as i32),
    };
    println!("{}", describe(&cluster));
    super::process::asked_to_end(args.until_stdin_closes).await;
    // Ending nodes takes a moment, which is not the runtime's.
    tokio::task::spawn_blocking(move || drop(cluster))
        .await
        .context("the nodes were not ended")?;
    Ok(Code::Ok)
}

fn describe(cluster: &Cluster) -> String {
    let points = cluster.contact_points();
    let nodes: Vec<String> = points
        .iter()
        .zip(cluster.data_centres())
        .map(|(address, data_centre)| format!("  {data_centre}  {address}"))
        .collect();
    format!(
        "Apache Cassandra runs, in {}:\n{}\n\nInterrupt to end.",
        cluster.directory().display(),
        nodes.join("\n"),
    )
}

/// What the user can do about it.
fn judge(error: ServerError) -> anyhow::Error {
    match error {
        ServerError::Missing(what) => Failure::new(Code::Unavailable, what).into(),
        ServerError::Invalid(what) => Failure::new(Code::Usage, what).into(),
        ServerError::Fetch(_) | ServerError::NoAddress => {
            Failure::new(Code::Unavailable, error.to_string()).into()
        }
        other => other.into(),
    }
}
