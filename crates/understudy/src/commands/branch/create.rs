//! `understudy branch create`.
//!
//! ```text
//!   record "making" ─▶ pin ─▶ contents (configuration, log) ─▶ volume over the image ─▶ recovery, masks, seal ─▶ record "ready"
//! ```
//!
//! Invariant: whatever ends it early leaves a record, by which `branch drop` finds everything that was made.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use backup::branch::{Moment, write};
use backup::source::Source;
use coordination::config::ClusterConfig;
use coordination::records::{Branch, BranchState, Heartbeat, Member, Record, unix_ms};
use dax::ids::{Epoch, VolumeName};
use dax::layer::Layer;
use dax::storage::Storage;
use node::config::Config;
use node::init::{Layered, over};
use serde_json::json;
use volume::lsn::Lsn;

use super::making::{After, Made, Making, conclude};
use super::named::{claimant, find};
use super::{choose, config, restored};
use crate::cli;
use crate::commands::registry::Registry;
use crate::exit::{Code, Failure};

/// The log is durable up to a position that may be in the middle of a record.
const INCOMPLETE_BYTES: u64 = 1 << 20;

/// A branch that is complete.
pub(super) struct Created {
    pub branch: Branch,
    pub port: u16,
    pub total_ms: u64,
    checkpoint_ms: u64,
    made: Made,
}

pub(super) async fn run(args: cli::CreateBranch) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.config).await?;
    let directory = std::path::absolute(&args.directory)?;
    let Created {
        branch,
        port,
        total_ms,
        checkpoint_ms,
        made,
    } = create(&registry, &args, &directory, After::Quiet).await?;
    if args.json {
        let shown = json!({
            "name": branch.name, "volume": branch.volume, "end": branch.end.map(|end| end.to_string()), "port": port, "total_ms": total_ms,
            "log_bytes": made.log_bytes, "checkpoint_ms": checkpoint_ms, "took": made.took, "bytes": made.bytes,
            "config": config::file(&directory),
        });
        println!("{shown}");
        return Ok(Code::Ok);
    }
    println!(
        "branch {}: {}\n\
         serve it:      understudy branch run --directory {}\n\
         connect:       port {port} of this machine, with the database's roles and passwords",
        args.name,
        took(&made, total_ms, checkpoint_ms),
        directory.display(),
    );
    Ok(Code::Ok)
}

fn took(made: &Made, total_ms: u64, checkpoint_ms: u64) -> String {
    let took = made.took;
    format!(
        "made in {:.1} s (checkpoint {:.1} s, {} MB of log copied in {:.1} s, recovery to {} {:.1} s, seal {:.1} s)",
        total_ms as f64 / 1000.0,
        checkpoint_ms as f64 / 1000.0,
        made.log_bytes >> 20,
        took.copy_ms as f64 / 1000.0,
        took.end,
        took.recovery_ms as f64 / 1000.0,
        took.seal_ms as f64 / 1000.0,
    )
}

impl Created {
    /// Durations of the parts, for people.
    pub(super) fn took(&self) -> String {
        took(&self.made, self.total_ms, self.checkpoint_ms)
    }
}

/// Makes the branch, and its node's files in `directory`.
pub(super) async fn create(
    registry: &Registry,
    args: &cli::CreateBranch,
    directory: &Path,
    after: After,
) -> anyhow::Result<Created> {
    let began = Instant::now();
    let postgres = registry.postgres()?;
    let names = registry.named().await?;
    let mut branch = begin(args, &postgres.cluster, &names, &after).await?;
    let secret = args.secret.secret_file.as_deref();
    let written = config::write(&args.config, directory, &branch.volume, args.port, secret);
    let port = match written {
        Ok(port) => port,
        Err(error) => {
            // Nothing of it is in the zones yet but its name.
            let record = Branch::record_name(&branch.name);
            names.remove_record(&record, Branch::AUTHORITY).await?;
            return Err(error);
        }
    };
    let asked = Instant::now();
    if args.at == "now" && args.from.repository.is_none() && !args.no_checkpoint {
        hurry(registry).await;
    }
    let checkpoint_ms = asked.elapsed().as_millis() as u64;
    let storages = (&registry.storage, &names);
    let making = Making {
        args,
        parent: postgres,
        directory,
        after,
    };
    let made = match &args.from.repository {
        None => make(&making, storages, &mut branch).await,
        Some(place) => restored::make(&making, place, storages, &mut branch).await,
    };
    let made = made.with_context(|| {
        format!(
            "the branch {name} is not complete: understudy branch drop {name} removes what was made",
            name = args.name
        )
    })?;
    Ok(Created {
        branch,
        port,
        total_ms: began.elapsed().as_millis() as u64,
        checkpoint_ms,
        made,
    })
}

/// Has the active write a checkpoint: the log behind it is what the branch has to replay.
async fn hurry(registry: &Registry) {
    let asked = match registry.operator() {
        Ok(operator) => operator.checkpoint().await.map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    if let Err(error) = asked {
        eprintln!(
            "understudy: recovery of the branch may take longer, without a checkpoint of the active: {error:#}"
        );
    }
}

/// Takes the name.
async fn begin(
    args: &cli::CreateBranch,
    parent: &ClusterConfig,
    names: &Arc<dyn Storage>,
    after: &After,
) -> anyhow::Result<Branch> {
    let name = &args.name;
    if *name == *parent.volume.as_str() {
        let said = format!("{name} is the name of the database's own volume");
        return Err(Failure::new(Code::Refused, said)
            .advise("Give another name.")
            .into());
    }
    if let Some(there) = find(names, name).await? {
        let (said, advice) = match there.state {
            BranchState::Ready => (
                format!("there is a branch {name} already"),
                "Give another name, or drop it first.".to_owned(),
            ),
            BranchState::Making | BranchState::Dropping => (
                format!("a branch {name} was not completed, or not dropped completely"),
                format!("If nobody is at it: understudy branch drop {name}"),
            ),
        };
        return Err(Failure::new(Code::Refused, said).advise(advice).into());
    }
    let created_unix_ms = unix_ms();
    let branch = Branch {
        name: name.clone(),
        state: BranchState::Making,
        volume: VolumeName::new(format!("{}-{name}-{created_unix_ms:x}", parent.volume))?,
        parent: Some(parent.stored_in().clone()),
        pin: None,
        owns_parent: false,
        at: args.at.clone(),
        end: None,
        created_unix_ms,
        expires_unix_ms: args.ttl.map(|ttl| created_unix_ms + ttl.as_millis() as u64),
        reset_of: after.reset_of(),
    };
    branch.store(names.as_ref()).await?;
    Ok(branch)
}

async fn make(
    making: &Making<'_>,
    (storage, names): (&Arc<dyn Storage>, &Arc<dyn Storage>),
    branch: &mut Branch,
) -> anyhow::Result<Made> {
    let Making { args, parent, .. } = making;
    let (pin, moment) = choose::image(storage, &args.name, &args.at).await?;
    branch.pin = Some(pin.name.clone());
    branch.store(names.as_ref()).await?;
    // From here on the record says that there is a pin, so nobody need give it up.
    let mut pin = pin.keep(storage).await?;
    let claim = claimant(&args.name)?;
    let members = Member::list(storage.as_ref()).await?;
    anyhow::ensure!(
        members.iter().all(|member| member.name != claim),
        "{claim} is a node: give the branch another name"
    );
    let mut source = Source::claim_image(storage.clone(), claim, pin.seal(), None).await?;
    let made = fill(making, &mut source, branch, &moment).await;
    let released = source.release().await;
    let made = made?;
    released?;
    // It has the WAL that it needs: the database's need not be kept for it.
    pin.log = None;
    pin.keep(storage).await?;
    let secret = args.secret.secret_file.as_deref();
    conclude(names, storage, &parent.cluster, branch, secret).await?;
    Ok(made)
}

async fn fill(
    making: &Making<'_>,
    source: &mut Source,
    branch: &mut Branch,
    moment: &Moment,
) -> anyhow::Result<Made> {
    let Making {
        args,
        parent,
        directory,
        ..
    } = making;
    let config = Config::load(&config::file(directory))?;
    let rest = directory.join("contents");
    let contents = write(source, moment, &rest, None).await?;
    let parent_key = parent.cluster.volume_key()?;
    let layer = Layer {
        parent: parent.cluster.stored_in().clone(),
        image: source.seal().lineage.clone(),
        first_epoch: next_epoch(source).await?,
        proof: None,
    };
    let layer = layer.proven(&branch.volume, parent_key.as_ref());
    let layered = Layered {
        settings: source.settings().under(layer),
        base: source.base().clone(),
        files: contents.files,
        rest: rest.clone(),
        recovery_settings: backup::restore::RECOVERY_SETTINGS,
        settings_after: making.settings_after(),
        masks: making.masks()?,
        within: args.within,
        filling: None,
        reach: match moment {
            Moment::Time(..) => source.seal().end,
            _ => Lsn(contents.log_end.0.saturating_sub(INCOMPLETE_BYTES)).max(source.seal().end),
        },
    };
    let making = Box::pin(over(&config, &layered));
    let (created, took) = kept(source, making).await?;
    std::fs::remove_dir_all(&rest)?;
    branch.end = Some(took.end);
    Ok(Made {
        took,
        log_bytes: contents.log_bytes,
        bytes: created.bytes,
    })
}

/// Says now and then that the image is still read, while something is done.
async fn kept<T>(
    source: &mut Source,
    doing: impl Future<Output = Result<T, node::agent::AgentError>>,
) -> anyhow::Result<T> {
    const KEEP_EVERY: Duration = Duration::from_secs(10);
    tokio::pin!(doing);
    let from = source.seal().redo;
    loop {
        tokio::select! {
            done = &mut doing => return Ok(done?),
            () = tokio::time::sleep(KEEP_EVERY) => source.keep(from).await?,
        }
    }
}

/// An epoch above every one that the volume has accepted.
async fn next_epoch(source: &Source) -> anyhow::Result<Epoch> {
    let beat = Heartbeat::load(source.storage().as_ref()).await?;
    let beat = beat.map_or(Epoch::NONE, |beat| beat.epoch);
    Ok(beat.max(source.seal().generation.epoch).next())
}
