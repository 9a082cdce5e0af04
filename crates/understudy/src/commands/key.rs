//! `understudy key`: the cluster's identity; the zones' secret, and the keys that are made from it.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use dax::credentials::{Secret, write_new};
use dax::ids::VolumeName;
use dax::tls::new_identity;

use crate::cli;
use crate::exit::Code;

/// Makes an identity or a secret, or derives a volume's key.
pub fn run(args: cli::Key) -> anyhow::Result<Code> {
    if let Some(path) = &args.new_identity {
        new_identity(path)?;
        eprintln!(
            "{} holds a new identity: copy it to every machine of the cluster, and nowhere else",
            path.display()
        );
    }
    if let Some(path) = &args.new_secret {
        write_new(path, &Secret::random()?.to_hex())?;
        eprintln!(
            "{} holds a new secret: copy it to every zone, and nowhere else",
            path.display()
        );
    }
    if let (Some(file), Some(volume)) = (&args.secret_file, &args.volume) {
        derive(file, volume, args.output.as_deref())?;
    }
    Ok(Code::Ok)
}

fn derive(secret: &Path, volume: &VolumeName, output: Option<&Path>) -> anyhow::Result<()> {
    let key = Secret::load(secret)?.key(volume).to_hex();
    match output {
        Some(path) => {
            write_new(path, &key)?;
            eprintln!(
                "{} holds the key of volume {volume}: give it to the volume's nodes, as \"key\" in \
                 their configuration",
                path.display()
            );
        }
        None => writeln!(std::io::stdout(), "{}", *key).context("cannot print the key")?,
    }
    Ok(())
}
