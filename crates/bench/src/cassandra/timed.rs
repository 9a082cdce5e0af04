//! How sides are timed.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::JoinSet;

use super::Load;
use super::side::{BLOCKS, Side};
use crate::statistics::quantile;

/// Writes on their way at a time while blocks are made. Four times as many filled the lines between distant
/// data centres until a connection's keepalive went unanswered.
const FILLING: u64 = 32;

/// What is done in one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub load: Load,
    pub clients: u16,
    pub length: Duration,
    /// Together with a client's number this decides which blocks it reads.
    pub seed: u64,
}

/// One run of one side.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub per_second: f64,
    /// In order.
    pub latencies_us: Vec<u32>,
    /// Processor time of this process for one operation. Over long lines the threads that carry packets are in it.
    pub client_us: f64,
}

impl Run {
    /// The latency that this share of the operations had at most.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        f64::from(quantile(&self.latencies_us, share)) / 1000.0
    }
}

/// Lets clients work for so long.
pub(super) async fn run(side: &Side, work: Work) -> anyhow::Result<Run> {
    let began = Instant::now();
    let used = processor_time()?;
    let mut working = JoinSet::new();
    for client in 0..work.clients {
        working.spawn(serve(side.clone(), work, client, began + work.length));
    }
    let mut latencies_us = Vec::new();
    while let Some(worked) = working.join_next().await {
        latencies_us.extend(worked.context("a client is gone")??);
    }
    let used = processor_time()?.saturating_sub(used);
    let per_second = latencies_us.len() as f64 / began.elapsed().as_secs_f64();
    let client_us = used.as_secs_f64() * 1e6 / (latencies_us.len().max(1) as f64);
    latencies_us.sort_unstable();
    Ok(Run {
        per_second,
        latencies_us,
        client_us,
    })
}

/// What this process has used so far.
fn processor_time() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = [usage.user_time(), usage.system_time()]
        .map(|time| Duration::from_micros(time.num_microseconds().unsigned_abs()));
    Ok(seconds.iter().sum())
}

async fn serve(side: Side, work: Work, client: u16, until: Instant) -> anyhow::Result<Vec<u32>> {
    let mut chance = SmallRng::seed_from_u64((work.seed << 16) | u64::from(client));
    let mut latencies_us = Vec::new();
    for number in 0u64.. {
        let began = Instant::now();
        if began >= until {
            break;
        }
        side.act(work.load, client, number, &mut chance).await?;
        latencies_us.push(began.elapsed().as_micros() as u32);
    }
    Ok(latencies_us)
}

/// Writes all blocks of these clients.
pub(super) async fn fill(side: &Side, clients: Range<u16>) -> anyhow::Result<()> {
    let mut filling = JoinSet::new();
    for lane in 0..FILLING {
        let (side, clients) = (side.clone(), clients.clone());
        filling.spawn(async move {
            for client in clients {
                for block in (lane..BLOCKS).step_by(FILLING as usize) {
                    side.commit(client, block).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(filled) = filling.join_next().await {
        filled.context("a client is gone")??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_latency_that_was_seen() {
        let run = Run {
            per_second: 1.0,
            latencies_us: (1..=101).map(|n| n * 1000).collect(),
            client_us: 0.0,
        };
        assert_eq!(run.quantile_ms(0.5), 51.0);
        assert_eq!(run.quantile_ms(0.9), 91.0);
        assert_eq!(run.quantile_ms(1.0), 101.0);
        let idle = Run {
            per_second: 0.0,
            latencies_us: Vec::new(),
            client_us: 0.0,
        };
        assert_eq!(idle.quantile_ms(0.5), 0.0);
    }
}
