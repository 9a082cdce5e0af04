//! Applications behind the proxy, as object-relational mappers write them: rows with keys that the database chooses, tenants
//! that a function sets and row security tells apart, and a foreign table.
//!
//! Four ways to connect: in either pool mode, once or for each transaction. None of them repeats what it was told to have
//! failed.

use std::sync::Arc;

use anyhow::Context;
use cluster::clients::clock::Clock;
use cluster::clients::history::Outcome;
use cluster::clients::pace::Pace;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use super::{Trouble, answer, writable};
use crate::chaos::check::applications::{Deed, Id, Keys, Row};

/// The role of the applications, which row security holds for.
const ROLE: &str = "chaos_app";
/// The proxy's name for the database in pool mode `transaction`.
const POOLED: &str = "pooled";
/// Clients of each way to connect.
const OF_EACH: i32 = 2;

/// PostgreSQL's word for a row that a policy refuses.
const REFUSED_BY_POLICY: &str = "42501";

const ORDER: &str =
    "INSERT INTO chaos_orders (tenant, n) VALUES ($1, $2) RETURNING id, token::text";
const ITEM: &str = "INSERT INTO chaos_items (order_id) VALUES ($1) RETURNING id";
const REMOTE: &str = "INSERT INTO chaos_remote VALUES ($1, $2)";
const LOOK: &str = "SELECT tenant, count(*) FROM chaos_orders GROUP BY tenant";

/// The tables, in the cluster and at `remote`.
///
/// # Errors
/// One of the servers refuses.
pub(crate) async fn create(cluster: &Server, remote: &Server) -> anyhow::Result<()> {
    let client = connect(&remote.config()).await?;
    let table = "CREATE TABLE chaos_remote (client integer NOT NULL, n bigint NOT NULL)";
    client.batch_execute(table).await?;
    let Server { host, port, .. } = remote;
    let password = cluster.password.as_deref().unwrap_or_default();
    let client = connect(&cluster.config()).await?;
    let schema = format!(
        "CREATE ROLE {ROLE} LOGIN PASSWORD '{password}';
         CREATE TABLE chaos_orders (id bigserial PRIMARY KEY, tenant integer NOT NULL, n bigint NOT NULL,
             token uuid NOT NULL DEFAULT gen_random_uuid());
         CREATE INDEX ON chaos_orders (tenant);
         CREATE TABLE chaos_items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             order_id bigint NOT NULL REFERENCES chaos_orders);
         ALTER TABLE chaos_orders ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON chaos_orders USING (tenant::text = current_setting('chaos.tenant', true));
         CREATE FUNCTION chaos_tenant(tenant integer, for_transaction boolean) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN PERFORM set_config('chaos.tenant', tenant::text, for_transaction); END $$;
         CREATE EXTENSION postgres_fdw;
         CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw
             OPTIONS (host '{host}', port '{port}', dbname 'postgres', connect_timeout '3', tcp_user_timeout '5000');
         CREATE USER MAPPING FOR {ROLE} SERVER elsewhere OPTIONS (user 'postgres', password_required 'false');
         CREATE FOREIGN TABLE chaos_remote (client integer, n bigint) SERVER elsewhere;
         GRANT SELECT, INSERT ON chaos_orders, chaos_items, chaos_remote TO {ROLE};
         GRANT USAGE ON SEQUENCE chaos_orders_id_seq TO {ROLE}"
    );
    Ok(client.batch_execute(&schema).await?)
}

/// The rows that are there.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn rows(client: &Client) -> anyhow::Result<Vec<Row>> {
    // Each row is inserted with the one that refers to it.
    let all = "SELECT tenant, n, o.id, token::text, coalesce(i.id, 0) \
               FROM chaos_orders o LEFT JOIN chaos_items i ON order_id = o.id";
    let rows = client.query(all, &[]).await?;
    let row = |row: &tokio_postgres::Row| Row {
        id: (row.get(0), row.get(1)),
        keys: Keys {
            order: row.get(2),
            token: row.get(3),
            item: row.get(4),
        },
    };
    Ok(rows.iter().map(row).collect())
}

/// Those in the foreign table.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn remote_rows(remote: &Server) -> anyhow::Result<Vec<Id>> {
    let client = connect(&remote.config()).await.context("the remote")?;
    let all = "SELECT client, n FROM chaos_remote";
    let rows = client.query(all, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Running clients.
pub(crate) struct Applications {
    deeds: Arc<Mutex<Vec<Deed>>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Applications {
    /// Starts them, with so many deeds a second together.
    pub fn start(proxy: &Server, rate: f64, clock: Clock) -> Applications {
        let (stop, stopped) = watch::channel(false);
        let deeds: Arc<Mutex<Vec<Deed>>> = Arc::default();
        let pace = Arc::new(Pace::new(Some(rate)));
        let mut tasks = JoinSet::new();
        for number in 0..4 * OF_EACH {
            let pooled = number & 1 != 0;
            let mut server = Server {
                user: ROLE.to_owned(),
                ..proxy.clone()
            };
            if pooled {
                POOLED.clone_into(&mut server.database);
            }
            let application = Application {
                client: number + 1,
                connects: number & 2 != 0,
                pooled,
                server: server.config(),
                deeds: deeds.clone(),
                told: 0,
                clock,
                deeds_begun: 0,
                n: 0,
            };
            tasks.spawn(application.run(pace.clone(), stopped.clone()));
        }
        Applications { deeds, stop, tasks }
    }

    /// Lets every client finish, and returns what they did.
    pub async fn stop(mut self) -> Vec<Deed> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.deeds.lock())
    }
}

struct Application {
    client: i32,
    /// It connects for each deed.
    connects: bool,
    pooled: bool,
    server: Config,
    deeds: Arc<Mutex<Vec<Deed>>>,
    /// Its rows that it was told are there.
    told: i64,
    clock: Clock,
    deeds_begun: u64,
    /// When the deed at hand began, which tells what is wrong with it from the faults of that time.
    n: i64,
}

impl Application {
    async fn run(mut self, pace: Arc<Pace>, stopped: watch::Receiver<bool>) {
        pace.wait().await;
        while let Some(session) = writable(&self.server, &stopped).await {
            // Whatever breaks ends the session, and the client connects again.
            let _ = self.use_session(&session, &pace, &stopped).await;
        }
    }

    async fn use_session(
        &mut self,
        session: &Client,
        pace: &Pace,
        stopped: &watch::Receiver<bool>,
    ) -> Result<(), Trouble> {
        // Whoever had the connection before is no tenant of this session's.
        self.look(session, None).await?;
        if !self.sets_in_transactions() {
            self.become_tenant(session).await?;
        }
        while !*stopped.borrow() {
            self.deed(session).await?;
            pace.wait().await;
            if self.connects {
                break;
            }
        }
        Ok(())
    }

    /// It is a tenant within each transaction, and none between them.
    fn sets_in_transactions(&self) -> bool {
        self.pooled && self.connects
    }

    async fn become_tenant(&self, session: &Client) -> Result<(), Trouble> {
        let tenant = self.client;
        let local = self.sets_in_transactions();
        let set = format!("SELECT chaos_tenant({tenant}, {local})");
        answer(session.batch_execute(&set)).await
    }

    async fn deed(&mut self, session: &Client) -> Result<(), Trouble> {
        self.n = self.clock.now().0;
        self.deeds_begun += 1;
        match self.deeds_begun % 4 {
            0 => {
                if self.sets_in_transactions() {
                    answer(session.batch_execute("BEGIN READ ONLY")).await?;
                    self.become_tenant(session).await?;
                    self.look(session, Some(self.client)).await?;
                    return answer(session.batch_execute("COMMIT")).await;
                }
                self.look(session, Some(self.client)).await
            }
            1 => self.remote(session).await,
            _ => self.order(session).await,
        }
    }

    async fn look(&self, session: &Client, tenant: Option<i32>) -> Result<(), Trouble> {
        let rows = answer(session.query(LOOK, &[])).await?;
        self.deeds.lock().push(Deed::Look {
            client: self.client,
            tenant,
            told: self.told,
            seen: rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
        });
        Ok(())
    }

    async fn remote(&self, session: &Client) -> Result<(), Trouble> {
        let id = (self.client, self.n);
        let done = answer(session.execute(REMOTE, &[&id.0, &id.1])).await;
        let outcome = outcome(done.as_ref().err());
        self.deeds.lock().push(Deed::Remote { id, outcome });
        done.map(drop)
    }

    async fn order(&mut self, session: &Client) -> Result<(), Trouble> {
        let id = (self.client, self.n);
        let inserted = self.insert(session).await;
        if let Err(trouble) = &inserted
            && trouble.code() == Some(REFUSED_BY_POLICY)
        {
            self.deeds.lock().push(Deed::Forgotten { id });
        }
        let (keys, done) = match inserted {
            Ok(keys) => (Some(keys), answer(session.batch_execute("COMMIT")).await),
            Err(trouble) => (None, Err(trouble)),
        };
        let outcome = match keys {
            // Its commit was never asked for.
            None => Outcome::Refused,
            Some(_) => outcome(done.as_ref().err()),
        };
        self.told += i64::from(outcome == Outcome::Acknowledged);
        self.deeds.lock().push(Deed::Order { id, outcome, keys });
        done
    }

    /// Everything but the commit.
    async fn insert(&self, session: &Client) -> Result<Keys, Trouble> {
        answer(session.batch_execute("BEGIN")).await?;
        if self.sets_in_transactions() {
            self.become_tenant(session).await?;
        }
        let order = answer(session.query_one(ORDER, &[&self.client, &self.n])).await?;
        let (order, token): (i64, String) = (order.get(0), order.get(1));
        let item = answer(session.query_one(ITEM, &[&order])).await?;
        let item = item.get(0);
        Ok(Keys { order, token, item })
    }
}

fn outcome(trouble: Option<&Trouble>) -> Outcome {
    trouble.map_or(Outcome::Acknowledged, Trouble::of_commit)
}
