//! The agent: a node's lives, one after the other.
//!
//! ```text
//!             ┌────────────────────────── look ◀──────────────────────────┐
//!             │ somebody beats                     │ nobody beats          │
//!             ▼                                    ▼                       │
//!          standby ── suspects, or is asked ──▶ take over ──▶ active ──────┤
//!             │                                    │ lost the race         │
//!             └── PostgreSQL ended, superseded ────┴───────────────────────┘
//! ```
//!
//! Every life opens its own handle to the storage tier: an epoch once lost is lost for good. What
//! the lives share is in [`context`]; what is decided about a silent active is in
//! [`detector`](crate::detector).

pub(crate) mod active;
mod candidates;
mod claims;
pub(crate) mod context;
mod controls;
pub(crate) mod error;
mod follow;
mod inquiry;
mod log;
mod look;
mod moving;
mod patience;
mod prefetch;
mod scrub;
mod slow;
mod stand_ins;
pub(crate) mod standby;
mod start;
pub(crate) mod status;
mod throughput;
mod warmth;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, watch};

use self::active::{Active, ActiveEnd};
pub(crate) use self::context::unix_ms;
use self::context::{Context, Host};
use self::controls::Controls;
pub use self::error::{AgentError, Result};
use self::follow::{Follower, StandbyEnd};
use self::look::{Look, Seen};
use self::status::{Order, StatusBoard};
use crate::channel::{Identity, Server};
use crate::config::{AgentLock, Config};
use crate::postgres::logfile::{Rotation, keep_rotating};
use crate::postgres::{check_port, leftovers};
use crate::records::Incarnation;
use crate::rest::{Facts, Rest};

/// How long to wait before trying again after a life failed; doubles up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs a node until `shutdown` resolves or it cannot start at all.
///
/// # Errors
/// What keeps the node from starting: configuration, programs, permissions, an unknown volume. Once
/// it runs, failures are logged and the node tries again.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let host = Host::check(&config)?;
    let _only = prepare(&config, &host)?;
    check_port(&config.postgres.listen_addresses, config.postgres.port)?;
    let (board, mut orders) = StatusBoard::new();
    let me = Identity {
        node: config.name.clone(),
        volume: config.volume.clone(),
        incarnation: Incarnation::random()
            .map_err(|e| AgentError::system("cannot read the kernel's random source", e))?,
    };
    let server = Server::bind(&config.channel.listen, me.clone(), board.clone()).await?;
    let facts = Facts {
        scope: config.volume.to_string(),
        node: config.name.to_string(),
        server_version: host.installation.version().number(),
    };
    let _rest = Rest::bind(&config, facts, me.clone(), board.clone()).await?;
    let (stop, mut stopped) = watch::channel(false);
    tokio::spawn(async move {
        shutdown.await;
        stop.send_replace(true);
        // Whoever waits sees the value first; the channel closes when this task ends.
        stop.closed().await;
    });
    let cluster = tokio::select! {
        cluster = wait_for_cluster(&config) => cluster?,
        _ = stopped.wait_for(|stop| *stop) => return Ok(()),
    };
    let (_controls, control) = Controls::start(config.clone());
    let server = Arc::new(server);
    let context = Context::new(config, me, host, cluster, server, board, control)?;
    let rotation = Rotation {
        bytes: context.config.postgres.log_size.bytes() as u64,
        kept: context.config.postgres.log_kept,
    };
    let rotating = tokio::spawn(keep_rotating(context.config.paths.log(), rotation));
    let end = live(&context, &mut orders, &mut stopped).await;
    rotating.abort();
    end
}

/// Makes the local directories, becomes their only agent, and cleans up after one that was killed.
pub(crate) fn prepare(config: &Config, host: &Host) -> Result<AgentLock> {
    let paths = &config.paths;
    let cannot_use = |e| AgentError::system(format!("cannot use {}", paths.data().display()), e);
    paths.create(host.owner()).map_err(cannot_use)?;
    let lock = paths.lock().map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => AgentError::Refused(format!(
            "another agent runs on {}; stop it first, or give this one another \"data\"",
            paths.data().display()
        )),
        _ => cannot_use(e),
    })?;
    let killed = leftovers::clean(&paths.run(), &paths.mount())?;
    if killed > 0 {
        tracing::info!(killed, "killed processes that an earlier agent left behind");
    }
    mount::detach_stale(&paths.mount())?;
    Ok(lock)
}

/// Facts about the cluster; waits while too few zones answer.
async fn wait_for_cluster(config: &Config) -> Result<crate::records::Cluster> {
    let storage = context::connect(config).await?;
    context::load_cluster(config, storage.as_ref()).await
}

/// What comes next in a node's life.
enum Next {
    /// Look around, after a pause if something went wrong.
    Look,
    /// The node is the active.
    Active(Box<Active>),
    /// The node was asked to stop.
    Stop,
}

async fn live(
    context: &Context,
    orders: &mut mpsc::Receiver<Order>,
    stopped: &mut watch::Receiver<bool>,
) -> Result<()> {
    let mut look = Look::default();
    let mut pause = PAUSE_MIN;
    let mut lived = false;
    loop {
        match one_life(context, &mut look, orders, stopped).await {
            Ok(Next::Stop) => return Ok(()),
            Ok(_) => {
                lived = true;
                pause = PAUSE_MIN;
            }
            Err(error) if !lived && error.is_of_this_machine() => return Err(error),
            Err(error) if error.is_superseded() => {
                tracing::info!(%error, "another node owns the volume now; joining it as a standby");
            }
            Err(error) => {
                let chain = chain(&error);
                tracing::error!(error = chain, "this life of the node failed; trying again");
                look.failed(&error);
                context.board.report(json!({
                    "node": context.me.node, "role": "none", "state": "failing", "error": chain,
                }));
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                    _ = stopped.wait_for(|stop| *stop) => return Ok(()),
                }
            }
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

async fn one_life(
    context: &Context,
    look: &mut Look,
    orders: &mut mpsc::Receiver<Order>,
    stopped: &mut watch::Receiver<bool>,
) -> Result<Next> {
    prepare_mount(context)?;
    let storage = context.connect().await?;
    context.board.watch(storage.clone());
    let seen = tokio::select! {
        seen = look.around(context, &storage) => seen?,
        _ = stopped.wait_for(|stop| *stop) => return Ok(Next::Stop),
    };
    let next = match seen {
        Seen::Active(heartbeat) => {
            follow(context, look, storage, *heartbeat, orders, stopped).await?
        }
        Seen::Nobody { previous, epoch } => {
            tokio::select! {
                active = start::start(context, storage, look.redo_failed(), previous, epoch) => {
                    Next::Active(Box::new(active?))
                }
                _ = stopped.wait_for(|stop| *stop) => return Ok(Next::Stop),
            }
        }
    };
    let Next::Active(active) = next else {
        return Ok(next);
    };
    look.redo_worked();
    match active.live(context, orders, stopped).await? {
        ActiveEnd::Shutdown => Ok(Next::Stop),
        ActiveEnd::Fenced | ActiveEnd::HandedOver => Ok(Next::Look),
        ActiveEnd::PostgresDied(report) => {
            tracing::info!(%report, "leaving the volume to a standby, if there is one");
            Ok(Next::Look)
        }
    }
}

/// A life that failed half-way may have left its mount; the next one needs the place.
fn prepare_mount(context: &Context) -> Result<()> {
    let paths = &context.config.paths;
    leftovers::clean(&paths.run(), &paths.mount())?;
    mount::detach_stale(&paths.mount())?;
    Ok(())
}

/// What a standby holds is worth having again when it attaches afresh.
fn remember_hot(context: &Context, standby: &standby::Standby) {
    let block_bytes = standby.storage.settings().block_size_bytes as usize;
    let most = context.config.memory.cache.bytes() / 2 / block_bytes;
    context.skips.remember(standby.view.hot_blocks(most));
}

/// A standby's life, up to a takeover.
async fn follow(
    context: &Context,
    look: &mut Look,
    storage: Arc<dyn dax::storage::Storage>,
    heartbeat: crate::records::Heartbeat,
    orders: &mut mpsc::Receiver<Order>,
    stopped: &mut watch::Receiver<bool>,
) -> Result<Next> {
    let (mut standby, known) = tokio::select! {
        attached = start::join(context, storage, &heartbeat, look.redo_failed()) => attached?,
        _ = stopped.wait_for(|stop| *stop) => return Ok(Next::Stop),
    };
    tracing::info!(active = %heartbeat.node, epoch = %heartbeat.epoch, "following as a standby");
    let attached_at = standby.view.base_seal().generation;
    let follower = Follower::new(context, &mut standby, &heartbeat, known);
    let end = follower.live(orders, stopped).await;
    if standby.view.base_seal().generation > attached_at {
        look.redo_worked();
    }
    match end {
        Ok(StandbyEnd::TakeOver {
            cause,
            detect,
            previous,
        }) => {
            let active =
                start::take_over(context, standby, cause, detect, previous, heartbeat.epoch)
                    .await?;
            Ok(Next::Active(Box::new(active)))
        }
        Ok(StandbyEnd::Shutdown) => {
            start::leave(context, standby).await?;
            Ok(Next::Stop)
        }
        Ok(StandbyEnd::Superseded) => {
            remember_hot(context, &standby);
            start::drop_standby(standby).await?;
            Ok(Next::Look)
        }
        Ok(StandbyEnd::Reinitialize) => {
            start::drop_standby(standby).await?;
            Ok(Next::Look)
        }
        Ok(StandbyEnd::TooSlow(why)) => {
            tracing::warn!(why, "too far behind: beginning anew at the newest seal");
            context.skips.skipped(&why);
            remember_hot(context, &standby);
            start::drop_standby(standby).await?;
            Ok(Next::Look)
        }
        Ok(StandbyEnd::PostgresDied(report)) => {
            look.ended(&report);
            tracing::error!(%report, "the standby's PostgreSQL ended; attaching afresh");
            start::drop_standby(standby).await?;
            tokio::time::sleep(PAUSE_MIN).await;
            Ok(Next::Look)
        }
        Err(error) => {
            start::drop_standby(standby).await?;
            Err(error)
        }
    }
}
