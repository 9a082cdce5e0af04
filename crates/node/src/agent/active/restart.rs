//! Restarting the active's PostgreSQL in place: under the same epoch and on the same mount.
//!
//! The agent goes on beating, so nobody takes over meanwhile. Only a server that stopped cleanly is
//! started again: what a crash leaves is for a standby, never for plain crash recovery. If the new one
//! does not come to serve, the epoch is vacated as if it had died.

use std::time::Duration;

use mount::child_io;
use pgdata::control::{ClusterState, ControlFile};
use pgdata::settings::{self, Configuration, NODE_FILE};
use pgserver::{ExitReport, Installation, Postgres, PostgresError, StartOptions, StopMode};
use volume::view::View;

use super::super::context::Context;
use super::super::error::{AgentError, Result};
use super::super::standby::read_configuration;
use super::announced::AnnouncedLog;
use super::proxied::run_of;
use super::{Active, STOP_WITHIN, read_control};

/// How long PostgreSQL may take to start, when nothing has to be replayed.
const START_WITHIN: Duration = Duration::from_secs(60);

/// How long sessions may take to end where nobody confirms their commits.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(5);

/// What came of a restart.
pub(super) enum Restarted {
    /// It serves again.
    Serves,
    /// It was not stopped; why.
    Refused(String),
    /// It does not, and somebody else should.
    Died(ExitReport),
    /// A higher epoch exists.
    Fenced,
}

impl Active {
    /// Stops PostgreSQL cleanly and starts it again.
    pub(super) async fn restart(
        &mut self,
        context: &Context,
        announced: &AnnouncedLog,
    ) -> Restarted {
        let storage = self.storage.clone();
        tokio::select! {
            biased;
            () = storage.fenced() => Restarted::Fenced,
            done = self.stop_and_start(context, announced) => done,
        }
    }

    async fn stop_and_start(&mut self, context: &Context, announced: &AnnouncedLog) -> Restarted {
        let prepared = tokio::select! {
            prepared = self.prepare(context) => prepared,
            report = self.postgres.exited() => return Restarted::Died(report),
            // The zones do not answer, and whoever stops the agent does not wait for them.
            () = context.out_of_time() => return Restarted::Refused("the agent stops".to_owned()),
        };
        let (installation, options) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Restarted::Refused(error.to_string()),
        };
        match self
            .replace(context, &installation, options, announced)
            .await
        {
            Ok(()) => Restarted::Serves,
            Err(AgentError::Postgres(PostgresError::Exited(report))) => Restarted::Died(report),
            Err(error) => {
                tracing::error!(%error, "PostgreSQL was not restarted");
                Restarted::Died(ExitReport {
                    code: None,
                    signal: None,
                    log: self.postgres.log_tail(30),
                })
            }
        }
    }

    /// What could refuse the start is asked before anything is stopped, as far as possible.
    async fn prepare(&self, context: &Context) -> Result<(Installation, StartOptions)> {
        let installation = Installation::find(&context.config.postgres.bin)?;
        installation.require_major(context.version.number().into())?;
        let configuration = self.configuration().await?;
        let mut pinned = settings::active(context.version);
        pinned.extend(context.warmth_settings(&configuration));
        pinned.extend(context.ordered_settings(&configuration));
        let options = context.start_options(&pinned);
        let file = context.node_file(&options, &configuration);
        self.replace_node_file(context, file).await?;
        Ok((installation, options))
    }

    /// Through the mount, whose kernel remembers the file.
    async fn replace_node_file(&self, context: &Context, bytes: Vec<u8>) -> Result<()> {
        let place = context.config.paths.mount().join(NODE_FILE);
        let write =
            move || child_io::replace(&place, &place.with_extension("conf.partial"), &bytes);
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.unwrap_or_else(|gone| Err(std::io::Error::other(gone)));
        written.map_err(|e| AgentError::system(format!("cannot write {NODE_FILE}"), e))
    }

    async fn replace(
        &mut self,
        context: &Context,
        installation: &Installation,
        options: StartOptions,
        announced: &AnnouncedLog,
    ) -> Result<()> {
        let report = self.stop(context).await?;
        let control = tokio::time::timeout(STOP_WITHIN, self.last_control(&report));
        // Without zones nobody can say.
        let Some(control) = control.await.unwrap_or(Ok(None))? else {
            return Err(PostgresError::Exited(report).into());
        };
        self.sealer.server_stopped();
        self.be_sealed(&control).await?;
        announced.hold();
        self.postgres = Postgres::start(installation, options).await?;
        let session = self.postgres.wait_ready(START_WITHIN).await?;
        self.started = run_of(&session).await;
        announced.let_go();
        tracing::info!(version = %installation.version(), "PostgreSQL was restarted in place");
        Ok(())
    }

    /// Stops PostgreSQL cleanly, unless its sessions cannot end. One with temporary tables commits once more as it ends,
    /// and only a confirmation ends that wait: if the server lets nobody confirm, it would never stop.
    async fn stop(&self, context: &Context) -> Result<ExitReport> {
        let stop = self.postgres.stop(StopMode::Fast, STOP_WITHIN);
        let is_confirmed =
            !settings::is_ordered(&self.postgres.options().settings) || !context.orders_no_log();
        if is_confirmed {
            return Ok(stop.await?);
        }
        tokio::select! {
            biased;
            report = stop => return Ok(report?),
            () = self.sessions_stay() => {}
        }
        tracing::warn!(
            "ending sessions wait for confirmations that do not come: PostgreSQL is stopped without a checkpoint, and \
             the next active replays its WAL"
        );
        Ok(self.postgres.stop(StopMode::Immediate, STOP_WITHIN).await?)
    }

    /// Returns when the sessions of a server that stops have not ended in time. Once they have, it says in its control
    /// file that it shuts down.
    async fn sessions_stay(&self) {
        tokio::time::sleep(SESSIONS_END_WITHIN).await;
        let control = read_control(&self.view).await;
        let state =
            control.map(|control| ControlFile::parse(&control).map(|control| control.state));
        if matches!(
            state,
            Ok(Ok(ClusterState::ShuttingDown | ClusterState::ShutDown))
        ) {
            std::future::pending().await
        }
    }

    /// A server starts at a seal, always: what its log was answered for is durable then. A clean stop ends with one.
    async fn be_sealed(&self, control: &[u8]) -> Result<()> {
        if !settings::is_ordered(&self.postgres.options().settings) {
            return Ok(());
        }
        let stopped = ControlFile::parse(control)?.checkpoint;
        if self.sealer.sealed_checkpoint() != Some(stopped) {
            self.sealer.seal_shutdown(&self.view, control).await?;
        }
        match self.sealer.sealed_checkpoint() == Some(stopped) {
            true => Ok(()),
            false => Err(AgentError::Refused(
                "the checkpoint at which PostgreSQL stopped is not sealed".to_owned(),
            )),
        }
    }

    /// The shared configuration, as it is now. Read while PostgreSQL serves: without zones nobody must wait for it who has
    /// no server.
    async fn configuration(&self) -> Result<Configuration> {
        self.view.sync_all().await?;
        read_configuration(&self.storage, &self.view.namespace()).await
    }
}
