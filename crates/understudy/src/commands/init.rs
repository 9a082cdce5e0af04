//! `understudy init`: creates a volume and the database in it.

use std::path::Path;

use coordination::config::ClusterConfig;
use dax::storage::VolumeSettings;
use dax::tls::new_identity;
use node::config::Config;
use node::init::{Created, InitOptions, SuperuserPassword};
use pgserver::Password;

#[cfg(feature = "engine")]
use super::registry::AnyConfig;
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// Creates the cluster and says what was made.
pub async fn run(args: cli::Init) -> anyhow::Result<Code> {
    #[cfg(feature = "engine")]
    if let AnyConfig::Engine(config) = AnyConfig::load(&args.config)? {
        return super::hosted::init(*config, args).await;
    }
    if let Some(kind) = &args.engine {
        let message = format!("the configuration has no [engine] with kind = \"{kind}\"");
        let advice = "Replace [postgres] by [engine], as docs/products/engines.md shows.";
        return Err(Failure::new(Code::Usage, message).advise(advice).into());
    }
    let config = Config::load_on(&args.config, args.store.as_deref())?;
    let password = args
        .password_file
        .as_deref()
        .map(read_password)
        .transpose()?;
    make_identity(&config.cluster)?;
    let spread = config.cluster.volume_settings();
    let options = InitOptions {
        settings: VolumeSettings {
            sync_replicas: args.sync_replicas.unwrap_or(spread.sync_replicas),
            protocol: args.protocol.into(),
            ..spread
        },
        import: args.import,
        password,
        initdb: args.initdb,
    };
    let created = tokio::select! {
        created = Box::pin(node::init::run(&config, options)) => created?,
        () = super::process::interrupted() => return Ok(Code::Interrupted),
    };
    if args.json {
        println!("{}", serde_json::to_string(&created)?);
    } else {
        println!("{}", next_steps(&config, &args.config, &created));
    }
    Ok(Code::Ok)
}

pub(super) fn no_password(path: &Path, why: &str) -> anyhow::Error {
    let message = format!(
        "cannot take the superuser's password from {}: {why}",
        path.display()
    );
    let advice = "Write the password into its first line, for example with: openssl rand -hex 16";
    Failure::new(Code::Usage, message).advise(advice).into()
}

fn read_password(path: &Path) -> anyhow::Result<Password> {
    Password::read(path).map_err(|error| no_password(path, &error.to_string()))
}

/// What was made, and how one gets to a session.
fn next_steps(config: &Config, file: &Path, created: &Created) -> String {
    let file = file.display();
    let user = &created.superuser;
    let password = match created.superuser_password {
        SuperuserPassword::Set => format!("{user} logs in with the password that was given"),
        SuperuserPassword::None => format!(
            "{user} has no password, so logging in over the network is impossible: set one in the session with \
             \\password"
        ),
        SuperuserPassword::Imported => {
            "roles and passwords are those of the imported database".to_owned()
        }
    };
    let port = config.postgres.port;
    let mut lines = vec![
        format!(
            "volume {} holds a PostgreSQL {} database of {} bytes",
            created.volume,
            created.postgres_major,
            thousands(created.bytes)
        ),
        String::new(),
        format!("start each node:     understudy node --config {file}"),
        format!("open a session:      understudy psql --config {file}"),
        format!(
            "connect a program:   \"host=NODE,NODE port={port},{port} user={user} target_session_attrs=read-write\""
        ),
        format!("{:21}{password}", ""),
    ];
    if matches!(
        config.postgres.listen_addresses.trim(),
        "localhost" | "127.0.0.1" | "::1"
    ) {
        lines.push(format!(
            "{:21}other machines can connect once postgres.listen_addresses and pg_hba.conf let them",
            ""
        ));
    }
    lines.join("\n")
}

/// Makes the identity of a new cluster where the configuration expects one.
pub(super) fn make_identity(cluster: &ClusterConfig) -> anyhow::Result<()> {
    if let Some(path) = &cluster.tls.identity
        && !path.exists()
    {
        new_identity(path)?;
        let path = path.display();
        eprintln!(
            "understudy: {path} is this cluster's new identity: copy it to every machine, for its owner \
             only, and start the zones with --identity; waiting for them"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_user_is_told_how_to_connect() {
        let config = Config::parse(Config::example()).unwrap();
        let told = |superuser_password| {
            let created = Created {
                volume: config.cluster.volume.clone(),
                system_identifier: 1,
                postgres_major: 15,
                bytes: 23_456_789,
                superuser: "postgres".into(),
                superuser_password,
            };
            next_steps(&config, Path::new("/etc/n.toml"), &created)
        };
        let none = told(SuperuserPassword::None);
        for part in [
            "understudy node --config /etc/n.toml",
            "understudy psql --config /etc/n.toml",
            "port=5432,5432 user=postgres target_session_attrs=read-write",
            "no password, so logging in over the network is impossible",
            "listen_addresses and pg_hba.conf",
        ] {
            assert!(none.contains(part), "{part:?} is not in: {none}");
        }
        assert!(!told(SuperuserPassword::Set).contains("logging in over the network"));
        assert!(told(SuperuserPassword::Imported).contains("imported database"));
    }
}
