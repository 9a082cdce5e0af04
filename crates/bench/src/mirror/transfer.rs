//! What commits see of a state transfer: the standby loses its disk, and is filled again while the primary serves.

use std::time::Instant;

use anyhow::Context;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use cluster::clients::schema;
use cluster::clients::session::connect;
use cluster::mirror::{Mirror, Options as MirrorOptions};
use serde::Serialize;

use super::ways::parameters;
use super::{Options, WITHIN, start_clients};
use crate::filled::database_bytes;

/// Results of one state transfer.
#[derive(Debug, Clone, Serialize)]
pub struct Transfer {
    /// The size of the database.
    pub bytes: u64,
    /// From the return of the empty server until its manager was a standby.
    pub seconds: f64,
    /// The longest time without a commit meanwhile.
    pub pause_ms: f64,
    /// Commits a second before it.
    pub tps_before: f64,
    /// Commits a second meanwhile.
    pub tps_during: f64,
    /// True if the members were equal afterwards.
    pub equal: bool,
}

/// How long commits are counted before the standby is lost.
const BEFORE: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn measure(options: &Options, say: &impl Fn(&str)) -> anyhow::Result<Transfer> {
    let dir = options.dir.join("transfer");
    std::fs::create_dir(&dir)?;
    let mut settings = MirrorOptions::new(&dir, &options.bin, &options.understudy);
    settings.parameters = parameters();
    let mut mirror = Mirror::prepare(settings).await?;
    say(&format!(
        "filling tables of scale {}",
        options.transfer_scale
    ));
    schema::create(&options.bin, &mirror.member(0), options.transfer_scale).await?;
    mirror.start(WITHIN).await?;
    let clock = Clock::start();
    let clients = start_clients(&mirror, options.transfer_scale, clock);
    tokio::time::sleep(BEFORE).await;
    let lost = clock.now();
    let standby = 1 - mirror.wait_primary(WITHIN).await?;
    tokio::task::block_in_place(|| mirror.kill_member(standby));
    mirror.renew_member(standby).await?;
    let (began, since) = (Instant::now(), clock.now());
    mirror.settle(WITHIN).await?;
    let (seconds, until) = (began.elapsed().as_secs_f64(), clock.now());
    let history = clients.stop().await;
    let verdict = mirror.verdict().await?.context("no standby")?;
    let client = connect(&mirror.member(standby).config()).await?;
    let transfer = Transfer {
        bytes: database_bytes(&client).await?,
        seconds,
        pause_ms: longest_pause_ms(&history, since, until),
        tps_before: history.rate(Offset(0), lost),
        tps_during: history.rate(since, until),
        equal: verdict["equal"] == true,
    };
    tokio::task::block_in_place(|| mirror.shutdown());
    say(&format!("{transfer:?}"));
    Ok(transfer)
}

/// The longest time without an acknowledgement between two moments.
pub(super) fn longest_pause_ms(history: &History, since: Offset, until: Offset) -> f64 {
    let within = history.commits().map(|attempt| attempt.ended);
    let within = within.filter(|at| since <= *at && *at <= until);
    let moments: Vec<Offset> = std::iter::once(since)
        .chain(within)
        .chain(std::iter::once(until))
        .collect();
    let pauses = moments.windows(2).map(|pair| pair[1].since(pair[0]));
    pauses.max().unwrap_or_default().as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::clients::history::{Attempt, Outcome};

    #[test]
    fn pauses_reach_to_both_ends() {
        let commit = |ms: i64| Attempt {
            client: 1,
            n: ms,
            outcome: Outcome::Acknowledged,
            began: Offset(0),
            ended: Offset(ms * 1000),
        };
        let history = History::new([10, 150, 160].map(commit).to_vec());
        let longest = |since: i64, until: i64| {
            longest_pause_ms(&history, Offset(since * 1000), Offset(until * 1000))
        };
        assert_eq!(longest(0, 200), 140.0);
        assert_eq!(longest(140, 400), 240.0);
        assert_eq!(longest(20, 40), 20.0);
    }
}
