//! An active that has not proved for Tmax that its epoch still stands answers nobody: its PostgreSQL would go on reading from
//! its memory what was true once, while another node may serve already.
//!
//! Invariant: PostgreSQL runs only while the writing of the last heartbeat that arrived began less than Tmax ago, but for the
//! moments that it takes to stop its processes. They are stopped where they are (SIGSTOP), so an outage of the zones ends no
//! connection. A server that must end while it is stopped is killed, and answers nobody in between.
//!
//! ```text
//!   runs ── no heartbeat for Tmax ──▶ stopped ── a heartbeat arrived ──▶ runs
//!                                        └────── a higher epoch, an order to stop ──▶ killed
//! ```

use std::path::PathBuf;
use std::time::Duration;

use coordination::config;
use coordination::records::Control;
use pgserver::{StartOptions, leftovers};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::agent::context::Context;

/// Stops and continues PostgreSQL until it is dropped. Whoever drops it kills the server, or knows that it runs.
pub(super) struct Freezer(JoinHandle<()>);

impl Freezer {
    pub(super) fn start(
        context: &Context,
        postgres: &StartOptions,
        beaten: watch::Receiver<Instant>,
    ) -> Freezer {
        let freezing = Freezing {
            beaten,
            control: context.control.clone(),
            own: context.config.cluster.heartbeat,
            data: postgres.data.clone(),
        };
        Freezer(tokio::spawn(freezing.run()))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Freezing {
    beaten: watch::Receiver<Instant>,
    control: watch::Receiver<Control>,
    /// This node's own configuration of heartbeats.
    own: config::Heartbeat,
    data: PathBuf,
}

impl Freezing {
    async fn run(mut self) {
        loop {
            silent(&self.beaten, || self.timeout()).await;
            tracing::warn!(
                after = ?self.timeout(),
                "no heartbeat arrived, so another node may serve: PostgreSQL is stopped (SIGSTOP) until one does"
            );
            self.signal(leftovers::freeze).await;
            let timeout = self.timeout();
            let proved = self.beaten.wait_for(|at| at.elapsed() < timeout).await;
            if proved.map(drop).is_err() {
                // Nobody beats any more; the server is about to be killed.
                return;
            }
            tracing::info!("this node still owns the volume: PostgreSQL continues");
            self.signal(leftovers::thaw).await;
        }
    }

    fn timeout(&self) -> Duration {
        self.control.borrow().heartbeat(self.own).timeout
    }

    async fn signal(&self, signal: fn(&std::path::Path)) {
        let data = self.data.clone();
        // It fails only if the runtime ends, and the server with it.
        let _ = tokio::task::spawn_blocking(move || signal(&data)).await;
    }
}

/// Waits until no heartbeat was written for so long.
pub(super) async fn silent(beaten: &watch::Receiver<Instant>, patience: impl Fn() -> Duration) {
    loop {
        let end = *beaten.borrow() + patience();
        if Instant::now() >= end {
            return;
        }
        tokio::time::sleep_until(end).await;
    }
}
