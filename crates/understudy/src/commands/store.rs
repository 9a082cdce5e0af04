//! `understudy store`: one zone.

use anyhow::Context;
use dax::credentials::Secret;
use dax::tls::{Files, Tls};
use store::{Emulated, StoreConfig, Zone};

use crate::cli;
use crate::exit::Code;

/// Serves a zone until it is asked to end, or fails.
pub async fn run(args: cli::Store) -> anyhow::Result<Code> {
    let secret = args.secret_file.as_deref().map(Secret::load).transpose()?;
    let network = args.network.zip(args.zone);
    let own = args.certificate.zip(args.certificate_key).zip(args.ca);
    let own = own.map(|((certificate, key), authority)| Files::Authority {
        certificate,
        key,
        authority,
    });
    let files = args.identity.map(Files::Identity).or(own);
    let config = StoreConfig {
        secret,
        tls: files.map(Tls::load).transpose()?,
        cache_bytes: args.cache.0,
        network: network.map(|(file, zone)| Emulated { file, zone }),
        ..StoreConfig::default()
    };
    let zone = std::sync::Arc::new(Zone::open(&args.data, config)?);
    for address in &args.listen {
        zone.serve(address)?;
    }
    coordination::service::ready();
    let waiting = zone.clone();
    let ended = tokio::task::spawn_blocking(move || waiting.wait());
    tokio::select! {
        ended = ended => ended.context("the zone's thread is gone")??,
        () = super::process::asked_to_end(args.until_stdin_closes) => {
            tokio::task::spawn_blocking(move || zone.stop())
                .await
                .context("the zone's thread is gone")??;
        }
    }
    Ok(Code::Ok)
}
