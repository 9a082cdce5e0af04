//! Clients that draw numbers from a sequence and keep them.

use std::sync::Arc;

use cluster::clients::clock::Clock;
use cluster::clients::pace::Pace;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use super::{Trouble, answer, writable};
use crate::chaos::check::numbers::Drawn;

const DRAW: &str = "INSERT INTO chaos_numbers VALUES (nextval('chaos_sequence')) RETURNING number";

/// Running clients.
pub(crate) struct Drawers {
    drawn: Arc<Mutex<Vec<Drawn>>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Drawers {
    /// Starts so many, with so many numbers a second together.
    pub fn start(server: &Config, clients: usize, rate: f64, clock: Clock) -> Drawers {
        let (stop, stopped) = watch::channel(false);
        let drawn: Arc<Mutex<Vec<Drawn>>> = Arc::default();
        let pace = Arc::new(Pace::new(Some(rate)));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (server, pace, stopped) = (server.clone(), pace.clone(), stopped.clone());
            let drawn = drawn.clone();
            tasks.spawn(async move {
                while let Some(session) = writable(&server, &stopped).await {
                    while !*stopped.borrow() && !session.is_closed() {
                        pace.wait().await;
                        let began = clock.now();
                        let Ok(number) = draw(&session).await else {
                            break;
                        };
                        let ended = clock.now();
                        drawn.lock().push(Drawn {
                            began,
                            ended,
                            number,
                        });
                    }
                }
            });
        }
        Drawers { drawn, stop, tasks }
    }

    /// Lets every client finish, and returns the numbers that they were told are committed.
    pub async fn stop(mut self) -> Vec<Drawn> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.drawn.lock())
    }
}

async fn draw(session: &Client) -> Result<i64, Trouble> {
    answer(session.batch_execute("BEGIN")).await?;
    let row = answer(session.query_one(DRAW, &[])).await?;
    answer(session.batch_execute("COMMIT")).await?;
    Ok(row.get(0))
}

/// The numbers that are there.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn all(client: &Client) -> anyhow::Result<Vec<i64>> {
    let rows = client
        .query("SELECT number FROM chaos_numbers", &[])
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
