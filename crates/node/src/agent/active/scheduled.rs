//! A switchover at a time: it stands in the control record, and the active carries it out.
//!
//! The order is taken out of the record before it is carried out, so that it happens once at most, also
//! if the agent dies on the way. One that nobody carried out in time, because nobody served, is
//! taken out and not made up for: what suited its operator then may not suit anybody now.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::Server;
use coordination::records::unix_ms;
use coordination::records::{Control, EditError, ScheduledSwitchover, edit_control};
use dax::ids::NodeName;
use dax::storage::Storage;
use pgserver::StartOptions;
use tokio::sync::{mpsc, watch};

use super::preparing;

/// How often it is looked whether it is time.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Later than this is too late.
const LATE_AFTER: Duration = Duration::from_secs(300);
/// How long other editors may keep it waiting.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What to do about a schedule.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    NotYet,
    Now,
    TooLate,
}

fn due(schedule: &ScheduledSwitchover, now_ms: u64) -> Due {
    match now_ms.checked_sub(schedule.at_unix_ms) {
        None => Due::NotYet,
        Some(late) if u128::from(late) > LATE_AFTER.as_millis() => Due::TooLate,
        Some(_) => Due::Now,
    }
}

/// Waits for schedules and says to whom to hand over, until it is dropped.
pub(super) async fn run(
    control: watch::Receiver<Control>,
    storage: Arc<dyn Storage>,
    server: Arc<Server>,
    me: NodeName,
    postgres: StartOptions,
    hand_over: mpsc::Sender<Option<NodeName>>,
) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    // The record as it is known may still have what was taken out of it.
    let mut done = 0;
    loop {
        look.tick().await;
        let (version, schedule) = {
            let control = control.borrow();
            (control.version, control.scheduled_switchover.clone())
        };
        let Some(schedule) = schedule.filter(|_| version > done) else {
            continue;
        };
        let due = due(&schedule, unix_ms());
        if due == Due::NotYet {
            continue;
        }
        match take(storage.as_ref(), &me, &schedule).await {
            Ok(control) => done = control.version,
            Err(error) => {
                tracing::warn!(%error, "the scheduled switchover was not begun");
                continue;
            }
        }
        if due == Due::TooLate {
            tracing::warn!(
                at = schedule.at_unix_ms,
                "the switchover was not done: no node was the active when it was due"
            );
        } else if let Err(why) = preparing::warm(&server, schedule.to.as_ref()) {
            tracing::warn!(why, "the scheduled switchover was not done");
        } else {
            preparing::flush(&postgres).await;
            if hand_over.send(schedule.to).await.is_err() {
                return;
            }
        }
    }
}

/// Takes the schedule out of the record, if it still stands there.
async fn take(
    storage: &dyn Storage,
    me: &NodeName,
    schedule: &ScheduledSwitchover,
) -> Result<Control, EditError> {
    edit_control(storage, me.as_str(), None, TIMEOUT, |control| {
        if control.scheduled_switchover.as_ref() != Some(schedule) {
            return Err(EditError::Refused("it was changed meanwhile".to_owned()));
        }
        control.scheduled_switchover = None;
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_due_at_its_time_and_for_a_while() {
        let schedule = ScheduledSwitchover {
            at_unix_ms: 1_000_000,
            to: None,
            by: "north".into(),
        };
        assert_eq!(due(&schedule, 999_999), Due::NotYet);
        assert_eq!(due(&schedule, 1_000_000), Due::Now);
        assert_eq!(due(&schedule, 1_300_000), Due::Now);
        assert_eq!(due(&schedule, 1_300_001), Due::TooLate);
    }
}
