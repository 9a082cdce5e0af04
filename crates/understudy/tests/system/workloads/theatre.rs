//! The cluster that the acts are played on, and what is asked of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use tokio_postgres::Client;

use super::acts::{ACTS, Act};
use crate::stage::{TIMEOUT, program};

/// Rows of the table that copied databases have.
const KEPT: &str =
    "CREATE TABLE kept (n int PRIMARY KEY); INSERT INTO kept SELECT generate_series(1, 3000)";
/// The commit log has so many transactions on a page.
const TRANSACTIONS_OF_A_PAGE: u32 = 32_768;

/// See the module. Fields are dropped in this order.
pub struct Theatre {
    cluster: Cluster,
    active: String,
    standby: String,
    scratch: Scratch,
}

impl Theatre {
    pub async fn open(test: &str) -> Result<Theatre> {
        let scratch = Scratch::new(test)?;
        let bin = programs::find(None)?;
        let mut options = Options::new(scratch.path(), &bin, program());
        options.heartbeat = "wide".into();
        let parameters = [
            ("shared_buffers", "4MB"),
            ("max_prepared_transactions", "20"),
            ("wal_level", "logical"),
        ];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(parameters);
        let mut cluster = Cluster::create(options)?;
        cluster.start().await?;
        let active = cluster.wait_active(TIMEOUT).await?;
        let standby = cluster.names().find(|name| **name != active);
        let standby = standby.context("two nodes")?.to_owned();
        let theatre = Theatre {
            cluster,
            active,
            standby,
            scratch,
        };
        let client = theatre.client().await?;
        client
            .batch_execute("CREATE DATABASE theatre_source")
            .await?;
        let source = theatre.client_of("theatre_source").await?;
        source.batch_execute(KEPT).await?;
        Ok(theatre)
    }

    /// Where a database of the active is.
    fn server(&self, node: &str, database: &str) -> Result<Server> {
        let mut server = self.cluster.server(node)?;
        server.database = database.to_owned();
        Ok(server)
    }

    /// A session on the active.
    pub async fn client(&self) -> Result<Client> {
        self.client_of("postgres").await
    }

    async fn client_of(&self, database: &str) -> Result<Client> {
        let server = self.server(&self.active, database)?;
        let connected = connect(&server.config()).await;
        connected.with_context(|| format!("cannot connect to {database}"))
    }

    /// Plays an act on the active.
    pub async fn play(&self, act: &Act) -> Result<()> {
        let client = self.client().await?;
        for statement in act.changes {
            let done = client.batch_execute(statement).await;
            done.with_context(|| format!("{}: {statement}", act.name))?;
        }
        // What a copy must not have.
        let source = self.client_of("theatre_source").await?;
        source
            .batch_execute("INSERT INTO kept SELECT max(n) + 1 FROM kept; CHECKPOINT")
            .await?;
        Ok(())
    }

    /// H5, N8, N9: names of whole directories come and go while seals fall anywhere in between.
    pub async fn databases_come_and_go_while_the_base_moves(&self) -> Result<()> {
        let client = self.client().await?;
        let seals = self.seals_meanwhile();
        for round in 0..4 {
            let strategy = ["FILE_COPY", "WAL_LOG"][round % 2];
            let create = format!("CREATE DATABASE short_lived STRATEGY {strategy}");
            client.batch_execute(&create).await?;
            let inside = self.client_of("short_lived").await?;
            inside.batch_execute(KEPT).await?;
            drop(inside);
            client
                .batch_execute("DROP DATABASE short_lived WITH (FORCE)")
                .await?;
        }
        seals.abort();
        Ok(())
    }

    /// Checkpoints, one after the other, until the task is aborted.
    fn seals_meanwhile(&self) -> tokio::task::JoinHandle<Result<()>> {
        let server = self.server(&self.active, "postgres");
        tokio::spawn(async move {
            let client = connect(&server?.config()).await?;
            loop {
                client.batch_execute("CHECKPOINT").await?;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    }

    /// N2: an index build writes its pages past the shared buffers, while checkpoints seal.
    pub async fn an_index_is_built_across_a_seal(&self) -> Result<()> {
        let client = self.client().await?;
        client
            .batch_execute(
                "CREATE TABLE built AS SELECT g AS id, md5(g::text) AS word FROM generate_series(1, 150000) g;
                 SET maintenance_work_mem = '1MB'; SET max_parallel_maintenance_workers = 0",
            )
            .await?;
        let seals = self.seals_meanwhile();
        let began = checkpoints(&client).await?;
        for number in 0..10 {
            let create = format!("CREATE INDEX built_{number} ON built (word, id)");
            client.batch_execute(&create).await?;
            if number >= 1 && checkpoints(&client).await? >= began + 3 {
                break;
            }
        }
        seals.abort();
        let ended = checkpoints(&client).await?;
        ensure!(
            ended >= began + 3,
            "checkpoints while building: {began} to {ended}"
        );
        Ok(())
    }

    /// Transactions enough for new pages of the commit log.
    pub async fn log_of_transactions_grows_by_pages(&self) -> Result<()> {
        let client = self.client().await?;
        client.batch_execute("SET synchronous_commit = off").await?;
        // Alone in its message: it ends transactions.
        let spend = format!(
            "DO $$ BEGIN FOR i IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$",
            TRANSACTIONS_OF_A_PAGE + 1000
        );
        client.batch_execute(&spend).await?;
        client
            .batch_execute(
                "CREATE TABLE after_page AS SELECT generate_series(1, 100) n; CHECKPOINT",
            )
            .await?;
        client.batch_execute(&spend).await?;
        client
            .batch_execute("SET synchronous_commit = on; INSERT INTO after_page VALUES (101)")
            .await?;
        Ok(())
    }

    /// H11: data outside of the volume would not be replicated.
    pub async fn tablespaces_are_refused(&self) -> Result<()> {
        let client = self.client().await?;
        let outside = self.scratch.path().join("outside");
        std::fs::create_dir(&outside)?;
        let owner = std::fs::metadata(self.cluster.node(&self.active)?.data.join("run"))?;
        {
            use std::os::unix::fs::MetadataExt;
            std::os::unix::fs::chown(&outside, Some(owner.uid()), Some(owner.gid()))?;
        }
        let create = format!("CREATE TABLESPACE outside LOCATION '{}'", outside.display());
        let refused = client.batch_execute(&create).await.err();
        let refused = refused.context("a tablespace outside of the volume was made")?;
        let message = refused
            .as_db_error()
            .map(|error| error.message().to_owned());
        println!("tablespace: {message:?}");
        ensure!(
            message.is_some_and(|m| m.contains("not permitted")),
            "{refused:?}"
        );
        // Nor in place, which is for PostgreSQL's own tests; so there is nothing to move a database to.
        client
            .batch_execute("SET allow_in_place_tablespaces = on")
            .await?;
        let create = "CREATE TABLESPACE inside LOCATION ''";
        let refused = client.batch_execute(create).await.err();
        let refused = refused.context("a tablespace in place was made")?;
        let message = refused.as_db_error().map(|error| error.message());
        ensure!(
            message.is_some_and(|m| m.contains("not permitted")),
            "{refused:?}"
        );
        let stay = "ALTER DATABASE theatre_source SET TABLESPACE pg_default";
        Ok(client.batch_execute(stay).await?)
    }

    /// What the active says to every question.
    pub async fn ask_active(&self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for act in ACTS {
            said.push(self.ask(&self.active, act).await?);
            println!("{}: {}", act.name, said.last().map_or("", |s| s));
        }
        Ok(said)
    }

    async fn ask(&self, node: &str, act: &Act) -> Result<String> {
        let server = self.server(node, act.database.unwrap_or("postgres"))?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let asked = async {
                let client = connect(&server.config()).await?;
                client.batch_execute("SET enable_seqscan = off").await?;
                client.query_one(act.question, &[]).await
            };
            match asked.await {
                Ok(row) => return Ok(row.get(0)),
                // A standby's query gives way to redo.
                Err(error)
                    if Instant::now() > deadline
                        || error
                            .as_db_error()
                            .is_some_and(|e| e.code().code().starts_with("XX")) =>
                {
                    return Err(error).with_context(|| format!("{}, on {node}", act.name));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// The standby, once it has replayed all, says the same.
    pub async fn standby_says(&mut self, said: &[String]) -> Result<()> {
        self.cluster.wait_follows(&self.standby, TIMEOUT).await?;
        for (act, said) in ACTS.iter().zip(said).filter(|(act, _)| act.on_standby) {
            let heard = self.ask(&self.standby, act).await?;
            ensure!(
                heard == *said,
                "{}: the standby says {heard}, not {said}",
                act.name
            );
        }
        Ok(())
    }

    /// Kills the active and waits for the other.
    pub async fn kill_active(&mut self) -> Result<()> {
        self.cluster
            .kill_node(&self.active)
            .context("it does not run")?;
        let active = self.cluster.wait_active(TIMEOUT).await?;
        ensure!(active == self.standby, "{active} is active");
        std::mem::swap(&mut self.active, &mut self.standby);
        Ok(())
    }

    /// The new active says the same, but where a crash takes something away.
    pub async fn active_says(&self, said: &[String]) -> Result<()> {
        for (act, said) in ACTS.iter().zip(said) {
            let heard = self.ask(&self.active, act).await?;
            let right = act.after.unwrap_or(said);
            ensure!(
                heard == right,
                "{}: after the takeover {heard}, not {right}",
                act.name
            );
        }
        Ok(())
    }

    /// The new active goes on where the old one was, and everything is whole.
    pub async fn goes_on(&mut self) -> Result<()> {
        self.whole().await?;
        for act in ACTS {
            let client = self.client_of(act.database.unwrap_or("postgres")).await?;
            for statement in act.goes_on {
                let done = client.batch_execute(statement).await;
                done.with_context(|| format!("{}, afterwards: {statement}", act.name))?;
            }
        }
        let client = self.client().await?;
        let ends = ["DROP DATABASE by_files", "DROP DATABASE theatre_source"];
        each(&client, &ends).await?;
        client.batch_execute("CHECKPOINT").await?;
        // The dead one comes back as a standby of all that.
        self.cluster.start_node(&self.standby)?;
        self.cluster.wait_follows(&self.standby, TIMEOUT).await?;
        self.whole().await
    }

    /// Looks into every table, index and visibility map of every database.
    async fn whole(&self) -> Result<()> {
        let client = self.client().await?;
        let databases = client
            .query("SELECT datname FROM pg_database WHERE datallowconn", &[])
            .await?;
        for row in databases {
            let server = self.server(&self.active, row.get(0))?;
            let mut checks = vec![verify::amcheck(&self.cluster.options().bin, &server).await?];
            checks.extend(verify::visibility(&server).await?);
            let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
            ensure!(failed.is_empty(), "{}: {failed:#?}", server.database);
        }
        Ok(())
    }

    /// Lines that no healthy run has, and that nobody here provoked.
    pub fn unexpected_log_lines(&self) -> Vec<String> {
        let provoked = [
            // Autovacuum comes for a database that was dropped meanwhile.
            "FATAL:  database ",
            "could not create symbolic link",
            "could not create directory",
            "could not obtain lock on row",
        ];
        self.cluster
            .unexpected_log_lines(|_, line| provoked.iter().any(|what| line.contains(what)))
    }

    pub async fn close(mut self) -> Result<()> {
        self.cluster.shutdown();
        self.scratch.succeed()
    }
}

/// Runs statements that must not share a message.
pub async fn each(client: &Client, statements: &[&str]) -> Result<()> {
    for statement in statements {
        let done = client.batch_execute(statement).await;
        done.with_context(|| (*statement).to_owned())?;
    }
    Ok(())
}

/// How many checkpoints this server has made.
async fn checkpoints(client: &Client) -> Result<i64> {
    let row = client
        .query_one(
            "SELECT checkpoints_req + checkpoints_timed FROM pg_stat_bgwriter",
            &[],
        )
        .await?;
    Ok(row.get(0))
}
