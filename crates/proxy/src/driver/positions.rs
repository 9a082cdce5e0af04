//! The active's position, asked for once for all reads that wait for it (R1).
//!
//! While one question is under way all others join the next: what a question answers was true after it was
//! asked, so it serves nobody who came later.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use volume::lsn::Lsn;

use super::cluster::Cluster;
use super::source::Source;

/// How long reads wait for a position before they are told that there is none.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before an active that gave no answer is asked again.
const TRY_AGAIN: Duration = Duration::from_millis(20);

type Asker = oneshot::Sender<Option<Lsn>>;

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

    /// The position as of now.
    pub fn ask(&self) -> oneshot::Receiver<Option<Lsn>> {
        let (asker, answer) = oneshot::channel();
        // If nobody answers any more, the receiver notices.
        let _ = self.askers.send(asker);
        answer
    }
}

async fn serve(
    source: Arc<dyn Source>,
    cluster: Arc<Cluster>,
    mut from: mpsc::UnboundedReceiver<Asker>,
) {
    let mut askers = Vec::new();
    while from.recv_many(&mut askers, usize::MAX).await > 0 {
        let position = tokio::time::timeout(PATIENCE, position(&*source, &cluster))
            .await
            .ok();
        for asker in askers.drain(..) {
            // A client that is gone does not mind.
            let _ = asker.send(position);
        }
    }
}

/// Asks until an epoch that stands answers.
async fn position(source: &dyn Source, cluster: &Cluster) -> Lsn {
    loop {
        match source.position().await {
            Ok(position) if position.is_proven && position.epoch == cluster.topology().epoch => {
                return position.lsn;
            }
            Ok(position) => tracing::debug!(?position, "a position without proof"),
            Err(error) => tracing::debug!(%error, "no position"),
        }
        cluster.news_within(TRY_AGAIN).await;
    }
}
