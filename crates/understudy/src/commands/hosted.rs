//! `understudy init` and `understudy node` where the configuration has `[engine]`: another server than PostgreSQL.

use std::path::{Path, PathBuf};

use dax::storage::VolumeSettings;
use operations::rest::{Facts, Rest};

use super::init::{make_identity, no_password};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// Creates a database of another kind, and says what was made.
pub(super) async fn init(config: engine::config::Config, args: cli::Init) -> anyhow::Result<Code> {
    let kind = config.engine.kind.to_string();
    let only_postgres = [
        ("--import", args.import.is_some()),
        ("initdb's arguments", !args.initdb.is_empty()),
        ("--store", args.store.is_some()),
        (
            "an --engine of another kind",
            args.engine.is_some_and(|wanted| wanted != kind),
        ),
    ];
    if let Some((what, _)) = only_postgres.iter().find(|(_, given)| *given) {
        let message =
            format!("{what} cannot be used with a configuration of engine.kind = \"{kind}\"");
        return Err(Failure::new(Code::Usage, message).into());
    }
    let password = args.password_file.as_deref().map(first_line).transpose()?;
    make_identity(&config.cluster)?;
    let spread = config.cluster.volume_settings();
    let options = engine::init::InitOptions {
        settings: VolumeSettings {
            sync_replicas: args.sync_replicas.unwrap_or(spread.sync_replicas),
            protocol: args.protocol.into(),
            ..spread
        },
        password,
    };
    let created = tokio::select! {
        created = Box::pin(engine::init::run(&config, options)) => created?,
        () = super::process::interrupted() => return Ok(Code::Interrupted),
    };
    if args.json {
        println!("{}", serde_json::to_string(&created)?);
        return Ok(Code::Ok);
    }
    let file = args.config.display();
    println!(
        "volume {} holds a database of {} of {} bytes\n",
        created.volume,
        created.engine.engine,
        thousands(created.bytes)
    );
    println!("start each node:     understudy node --config {file}");
    if let Some(socket) = created.socket {
        println!(
            "open a session:      mariadb --socket={} (as the user {}, on the node that serves)",
            socket.display(),
            created.owner
        );
        if !created.password {
            println!(
                "{:21}root has no password, so logging in over the network is impossible: create users in the \
                 session, or \
                 give init a --password-file",
                ""
            );
        }
    }
    Ok(Code::Ok)
}

/// A file's first line.
fn first_line(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    let line = text.map(|text| text.lines().next().unwrap_or_default().to_owned());
    match line {
        Ok(line) if !line.is_empty() => Ok(line),
        Ok(_) => Err(no_password(path, "its first line is empty")),
        Err(error) => Err(no_password(path, &error.to_string())),
    }
}

/// Runs the agent of a node that hosts another server than PostgreSQL, until it is asked to end.
pub(super) async fn run(
    config: engine::config::Config,
    asked_to_end: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let (rest, cluster) = (config.rest.clone(), config.cluster.clone());
    let agent = engine::agent::Agent::prepare(config).await?;
    let facts = Facts {
        scope: cluster.volume.to_string(),
        node: cluster.name.to_string(),
        server_version: 0,
        bin: PathBuf::new(),
    };
    let _rest = Rest::bind(&rest, &cluster, facts, agent.party(), agent.board()).await?;
    Ok(agent.run(asked_to_end).await?)
}
