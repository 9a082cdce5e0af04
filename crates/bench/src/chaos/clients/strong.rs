//! Sessions through the proxy that read all open lists with one statement, whichever server that runs on.

use std::sync::Arc;
use std::time::Duration;

use cluster::clients::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use super::lists::Window;
use super::readers::lists;
use super::writable;
use crate::chaos::check::strong::StrongRead;

/// Between two reads of a session.
const EVERY: Duration = Duration::from_millis(100);

/// Running readers; dropping them stops them.
pub(crate) struct StrongReaders {
    reads: Arc<Mutex<Vec<StrongRead>>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl StrongReaders {
    /// Starts so many.
    pub fn start(proxy: &Config, count: usize, window: &Window, clock: Clock) -> StrongReaders {
        let reads: Arc<Mutex<Vec<StrongRead>>> = Arc::default();
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (proxy, reads, window) = (proxy.clone(), reads.clone(), window.clone());
            let stopped = stopped.clone();
            tasks.spawn(async move {
                while let Some(client) = writable(&proxy, &stopped).await {
                    while !*stopped.borrow() {
                        let began = clock.now();
                        let Ok(lists) = lists(&client, window.first()).await else {
                            break;
                        };
                        let ended = clock.now();
                        reads.lock().push(StrongRead {
                            began,
                            ended,
                            lists,
                        });
                        tokio::time::sleep(EVERY).await;
                    }
                }
            });
        }
        StrongReaders { reads, stop, tasks }
    }

    /// Lets every session finish its read, and returns what all of them saw.
    pub async fn stop(mut self) -> Vec<StrongRead> {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        std::mem::take(&mut *self.reads.lock())
    }
}
