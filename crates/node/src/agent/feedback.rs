//! Feedback connections for those standbys that want the active to keep rows which their queries read.
//!
//! What a standby needs comes with its progress over the direct channel; its feedback connection tells the active's
//! PostgreSQL ([`pgdata::feedback`]). Invariant: rows are kept only as long as the standby is heard of:
//! the channel drops one that is silent for seconds, and its feedback connection leaves with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::channel::{Server, Subscriber};
use dax::ids::NodeName;
use pgdata::confirm;
use pgdata::feed::RowsNeeded;
use pgdata::feedback::{Report, report_feedback};
use pgserver::StartOptions;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// How often it is looked what the standbys report.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long to wait before trying again after PostgreSQL refused; doubles up to the second.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long feedback connections may take to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// The feedback connections at a running active.
pub(super) struct FeedbackConnections {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Where they connect to.
#[derive(Clone)]
struct Place {
    socket: PathBuf,
    user: String,
}

impl FeedbackConnections {
    /// Begins to stand in for those who subscribe at `server`, at the PostgreSQL that was started with
    /// these options.
    pub(super) fn start(server: Arc<Server>, postgres: &StartOptions) -> FeedbackConnections {
        let place = Place {
            socket: postgres.run.join(format!(".s.PGSQL.{}", postgres.port)),
            user: postgres.superuser.clone(),
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(server, place, stopped));
        FeedbackConnections { stop, task }
    }

    /// Lets them leave, so that a stop of PostgreSQL does not meet them.
    pub(super) async fn end(mut self) {
        drop(self.stop);
        if tokio::time::timeout(LEAVE_WITHIN, &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
        }
    }

    /// Cuts them off.
    pub(super) fn abort(self) {
        self.task.abort();
    }
}

async fn run(server: Arc<Server>, place: Place, mut stopped: oneshot::Receiver<()>) {
    let mut reports: BTreeMap<NodeName, watch::Sender<Report>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = look.tick() => {}
        }
        let wanted = wanted(server.subscribers());
        reports.retain(|node, _| wanted.contains_key(node));
        for (node, report) in wanted {
            if let Some(known) = reports.get(&node) {
                known.send_replace(report);
                continue;
            }
            let (told, reported) = watch::channel(report);
            tasks.spawn(keep(place.clone(), node.clone(), reported));
            reports.insert(node, told);
        }
        while tasks.try_join_next().is_some() {}
    }
    drop(reports);
    while tasks.join_next().await.is_some() {}
}

/// What is to be reported for whom. Of a node that is subscribed twice, because the end of its earlier
/// connection was not noticed yet, the later one counts.
fn wanted(subscribers: Vec<Subscriber>) -> BTreeMap<NodeName, Report> {
    let wanted = subscribers.into_iter().filter_map(|subscriber| {
        let progress = subscriber.progress?;
        let report = Report {
            received: progress.received,
            applied: progress.applied,
            needed: progress.needed?,
        };
        Some((subscriber.who.node, report))
    });
    wanted.collect()
}

/// The oldest of the rows that standbys need.
pub(super) fn needed(server: &Server) -> RowsNeeded {
    let wanted = wanted(server.subscribers());
    confirm::oldest(wanted.into_values().map(|report| report.needed))
}

/// Stands in for one standby until nobody reports for it any more.
async fn keep(place: Place, node: NodeName, mut reported: watch::Receiver<Report>) {
    let mut pause = PAUSE_MIN;
    let name = node.as_str();
    while let Err(error) = report_feedback(&place.socket, &place.user, name, &mut reported).await {
        tracing::warn!(
            %error,
            "PostgreSQL does not keep rows for queries on {name}, so vacuum may cancel them; trying again"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
            () = gone(&mut reported) => return,
        }
    }
}

/// Waits until nobody reports any more.
async fn gone(reported: &mut watch::Receiver<Report>) {
    while reported.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use coordination::channel::{Identity, Progress};
    use coordination::records::Incarnation;
    use dax::ids::VolumeName;
    use volume::lsn::Lsn;

    use super::*;

    fn subscriber(node: &str, applied: u64, xmin: Option<u32>) -> Subscriber {
        let needed = xmin.map(|xmin| RowsNeeded {
            xmin,
            ..RowsNeeded::default()
        });
        Subscriber {
            who: Identity {
                node: NodeName::new(node).unwrap(),
                volume: VolumeName::new("main").unwrap(),
                incarnation: Incarnation("1".into()),
            },
            progress: Some(Progress {
                applied: Lsn(applied),
                needed,
                ..Progress::default()
            }),
        }
    }

    #[test]
    fn those_who_need_rows_have_a_feedback_connection_each() {
        let silent = Subscriber {
            progress: None,
            ..subscriber("west", 1, Some(7))
        };
        let wanted = wanted(vec![
            subscriber("south", 1, Some(7)),
            subscriber("east", 1, None),
            silent,
            subscriber("south", 2, Some(8)),
        ]);
        let south = NodeName::new("south").unwrap();
        assert_eq!(wanted.keys().collect::<Vec<_>>(), [&south]);
        assert_eq!(wanted[&south].applied, Lsn(2));
        assert_eq!(wanted[&south].needed.xmin, 8);
    }
}
