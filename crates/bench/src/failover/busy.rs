//! No fault at all, but every processor is busy with something else and the store is slow: nobody may
//! take over, since nothing is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use store::Network;

use super::Options;
use super::report::Busy;
use super::stage::Stage;
use cluster::clients::clock::Offset;
use cluster::clients::history::Outcome;

/// Of every message between any two of node and zones.
const ONE_WAY: Duration = Duration::from_millis(250);
/// Threads that do nothing but take time, for each processor.
const HOGS_PER_PROCESSOR: usize = 2;
/// Between two words to the operator.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Commits take this long when everything is slow.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Measures; `say` hears what is going on.
pub(super) async fn run(options: &Options, say: &impl Fn(&str)) -> anyhow::Result<Busy> {
    say("busy: starting 2 nodes, filling the tables");
    let mut stage = Stage::set(options, "busy", &["north", "south"], |cluster, load| {
        cluster.network = Some(Network::default());
        (load.timeout, load.connect_within) = (ANSWER_WITHIN, ANSWER_WITHIN);
    })
    .await?;
    let before = stage.last_takeover().await?;
    let began = stage.clock.now();
    set_distance(&mut stage, ONE_WAY)?;
    let hogs = Hogs::start();
    let mut left = options.busy;
    while !left.is_zero() {
        let step = left.min(SAY_EVERY);
        tokio::time::sleep(step).await;
        left -= step;
        let commits = stage.load.acknowledged();
        say(&format!("busy: {:?} to go, {commits} commits", left));
    }
    let (end, threads) = (stage.clock.now(), hogs.count());
    drop(hogs);
    set_distance(&mut stage, Duration::ZERO)?;
    let after = stage.last_takeover().await?;
    say("busy: verifying");
    let clock = stage.clock;
    let (history, checks) = stage.verify().await?;
    Ok(Busy {
        seconds: end.since(began).as_secs_f64(),
        threads,
        round_trip_ms: Offset(2 * ONE_WAY.as_micros() as i64).millis(),
        takeovers: after.epoch - before.epoch,
        tps: history.rate(began, end.min(clock.now())),
        acknowledged: history.count(Outcome::Acknowledged),
        checks,
    })
}

fn set_distance(stage: &mut Stage, one_way: Duration) -> anyhow::Result<()> {
    stage.cluster.change_network(|network| {
        for a in 0..3u8 {
            for b in a..3 {
                network.link_mut(&a.to_string(), &b.to_string()).latency = one_way;
            }
        }
    })
}

/// Threads that keep the processors busy until they are dropped.
struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    fn start() -> Hogs {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..processors * HOGS_PER_PROCESSOR).map(spin).collect();
        Hogs { stop, threads }
    }

    fn count(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
