//! `understudy store`: one zone.

use anyhow::Context;
use dax::credentials::Secret;
use store::{Emulated, StoreConfig, Zone};

use crate::cli;
use crate::exit::Code;

/// Serves a zone until it is asked to end, or fails.
pub async fn run(args: cli::Store) -> anyhow::Result<Code> {
    let secret = args.secret_file.as_deref().map(Secret::load).transpose()?;
    let network = args.network.zip(args.zone);
    let config = StoreConfig {
        secret,
        network: network.map(|(file, zone)| Emulated { file, zone }),
        ..StoreConfig::default()
    };
    let zone = std::sync::Arc::new(Zone::open(&args.data, config)?);
    for address in &args.listen {
        zone.serve(address)?;
    }
    let waiting = zone.clone();
    let ended = tokio::task::spawn_blocking(move || waiting.wait());
    tokio::select! {
        ended = ended => ended.context("the zone's thread is gone")??,
        () = super::asked_to_end(args.until_stdin_closes) => {
            tokio::task::spawn_blocking(move || zone.stop())
                .await
                .context("the zone's thread is gone")??;
        }
    }
    Ok(Code::Ok)
}
