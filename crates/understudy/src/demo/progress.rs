//! The live line: once a second, how many commits and what is going on.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::timeline::thousands;
use cluster::clients::clock::Clock;

/// Tells a person what happens, on standard error. Dropping it ends the live line.
#[derive(Debug)]
pub struct Progress {
    state: Arc<Mutex<String>>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Says nothing by itself yet.
    pub fn new() -> Progress {
        Progress {
            state: Arc::new(Mutex::new(String::new())),
            ticker: None,
        }
    }

    /// One event, at once.
    pub fn say(&self, what: &str) {
        eprintln!("  {what}");
    }

    /// What the live line shows as the state from now on.
    pub fn set_state(&self, state: impl Into<String>) {
        *self.state.lock() = state.into();
    }

    /// Starts the live line; `count` tells the commits so far and `aside` adds a remark.
    pub fn start(
        &mut self,
        clock: Clock,
        count: impl Fn() -> u64 + Send + 'static,
        aside: impl Fn() -> Option<String> + Send + 'static,
    ) {
        let state = self.state.clone();
        self.ticker = Some(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            ticks.tick().await;
            let mut before = count();
            loop {
                ticks.tick().await;
                let now = count();
                let aside = aside().map_or(String::new(), |text| format!("   {text}"));
                eprintln!(
                    "  {:>4.0} s  {:>7} commits/s   {}{aside}",
                    clock.now().seconds(),
                    thousands(now - before),
                    state.lock()
                );
                before = now;
            }
        }));
    }

    /// Ends the live line.
    pub fn stop(&mut self) {
        if let Some(ticker) = self.ticker.take() {
            ticker.abort();
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop();
    }
}
