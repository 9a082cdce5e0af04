//! `understudy init`: creates a volume and the database in it.

use dax::storage::VolumeSettings;
use dax::tls::new_identity;
use node::config::Config;
use node::init::InitOptions;

use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::Code;

/// Creates the cluster and says what was made.
pub async fn run(args: cli::Init) -> anyhow::Result<Code> {
    let config = Config::load_on(&args.config, args.store.as_deref())?;
    make_identity(&config)?;
    let spread = config.volume_settings();
    let options = InitOptions {
        settings: VolumeSettings {
            sync_replicas: args.sync_replicas.unwrap_or(spread.sync_replicas),
            protocol: args.protocol.into(),
            ..spread
        },
        import: args.import,
        initdb: args.initdb,
    };
    let created = tokio::select! {
        created = Box::pin(node::init::run(&config, options)) => created?,
        () = super::interrupted() => return Ok(Code::Interrupted),
    };
    if args.json {
        println!("{}", serde_json::to_string(&created)?);
    } else {
        println!(
            "volume {} holds a PostgreSQL {} database of {} bytes; now run: understudy node --config {}",
            created.volume,
            created.postgres_major,
            thousands(created.bytes),
            args.config.display()
        );
    }
    Ok(Code::Ok)
}

/// Makes the identity of a new cluster where the configuration expects one.
fn make_identity(config: &Config) -> anyhow::Result<()> {
    if let Some(path) = &config.tls.identity
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
