//! The active's position, asked for once for all reads that wait for it (R1).
//!
//! While one question is under way all others join the next: what a question answers was true after it was
//! asked, so it serves nobody who came later.
//!
//! A standby shows a commit as soon as its log is durable; the active itself shows it when its server process gets to that, on a
//! busy machine later than a standby did. So who is about to read on the active waits until it shows what was durable when it
//! was asked: no standby had more to show by then.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use volume::lsn::Lsn;

use super::cluster::Cluster;
use super::source::{Position, Source};

/// How long reads wait for a position before they are told that there is none.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before an active that gave no answer is asked again.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How long to wait before an active is asked again that does not show yet what it has.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Somebody who waits.
struct Asker {
    answer: oneshot::Sender<Option<Lsn>>,
    until: Instant,
    /// Waits until the active itself shows all that is durable when it is asked first.
    shown: bool,
    /// The position that was durable then.
    first: Option<Lsn>,
}

/// Asks for positions.
pub struct Positions {
    askers: mpsc::UnboundedSender<Asker>,
}

impl Positions {
    /// Begins to ask `source`. Must be called inside a tokio runtime.
    pub fn new(source: Arc<dyn Source>, cluster: Arc<Cluster>) -> Positions {
        let (askers, from) = mpsc::unbounded_channel();
        tokio::spawn(serve(source, cluster, from));
        Positions { askers }
    }

    /// The position as of now; for who reads on the active, as soon as that shows all that a standby may have `shown`.
    pub fn ask(&self, shown: bool) -> oneshot::Receiver<Option<Lsn>> {
        let (answer, answered) = oneshot::channel();
        // If nobody answers any more, the receiver notices.
        let _ = self.askers.send(Asker {
            answer,
            until: Instant::now() + PATIENCE,
            shown,
            first: None,
        });
        answered
    }
}

impl Asker {
    /// Takes an answer; who goes on waiting is returned.
    fn hear(mut self, position: Option<&Position>) -> Option<Asker> {
        let first = match (self.first, position) {
            (None, Some(position)) => *self.first.insert(position.lsn),
            (Some(first), Some(_)) => first,
            (_, None) => return self.wait_on(),
        };
        if self.shown && position.is_some_and(|position| position.shown < first) {
            return self.wait_on();
        }
        // A client that is gone does not mind.
        let _ = self.answer.send(Some(first));
        None
    }

    fn wait_on(self) -> Option<Asker> {
        if self.answer.is_closed() {
            return None;
        }
        if Instant::now() < self.until {
            return Some(self);
        }
        let _ = self.answer.send(None);
        None
    }
}

async fn serve(
    source: Arc<dyn Source>,
    cluster: Arc<Cluster>,
    mut from: mpsc::UnboundedReceiver<Asker>,
) {
    let mut askers = Vec::new();
    loop {
        // Who waits for what is shown looks again after a moment, and nobody else waits for that.
        let is_idle = askers.is_empty();
        let more = from.recv_many(&mut askers, usize::MAX);
        let more = match is_idle {
            true => Ok(more.await),
            false => tokio::time::timeout(LOOK_AGAIN, more).await,
        };
        if more == Ok(0) {
            return;
        }
        let shown = askers.iter().any(|asker| asker.shown);
        let until = askers.iter().map(|asker| asker.until).min();
        let until = until.unwrap_or_else(Instant::now);
        let position = position(&*source, &cluster, shown);
        let position = tokio::time::timeout_at(until, position).await.ok();
        let waiting = std::mem::take(&mut askers).into_iter();
        askers.extend(waiting.filter_map(|asker| asker.hear(position.as_ref())));
    }
}

/// Asks until an epoch that stands answers.
async fn position(source: &dyn Source, cluster: &Cluster, shown: bool) -> Position {
    loop {
        match source.position(shown).await {
            Ok(position) if position.is_proven && position.epoch == cluster.topology().epoch => {
                return position;
            }
            Ok(position) => tracing::debug!(?position, "a position without proof"),
            Err(error) => tracing::debug!(%error, "no position"),
        }
        cluster.news_within(TRY_AGAIN).await;
    }
}
