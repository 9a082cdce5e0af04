//! Room in the zones for what is being made.
//!
//! A database that serves waits until there is room again, since it can lose nothing by that. Whoever makes one would wait for an operator
//! who does not know of it. Invariant: the making is given up only while too few zones take blocks for any to be durable.

use std::sync::Arc;
use std::time::Duration;

use dax::error::{Error, ErrorKind};
use dax::storage::{Protocol, ReplicaStatus, Storage};
use tokio::time::{Instant, sleep};

const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });
/// A zone that is full for a moment, while it removes what is not needed, is waited for.
const FULL_FOR: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 15_000 });

/// Does it, unless the zones have no room for it.
///
/// # Errors
/// Those of what is done, and `Full` with the zones that are full.
pub async fn unless_full<T, E: From<Error>>(
    storage: &Arc<dyn Storage>,
    mut doing: impl Future<Output = Result<T, E>> + Unpin,
) -> Result<T, E> {
    let enough = match storage.settings().protocol {
        Protocol::WriteAll => storage.replicas().len(),
        _ => usize::from(storage.sync_replicas()),
    };
    let mut full_since: Option<Instant> = None;
    loop {
        tokio::select! {
            done = &mut doing => return done,
            () = sleep(LOOK_EVERY) => {}
        }
        let Some(full) = too_full(&storage.replicas(), enough) else {
            full_since = None;
            continue;
        };
        if full_since.get_or_insert_with(Instant::now).elapsed() >= FULL_FOR {
            let text = format!(
                "no room in the zones at {full}: make room on their file systems, then repeat the command"
            );
            return Err(Error::new(ErrorKind::Full, text).into());
        }
    }
}

/// The zones that are full, if those that are not are too few.
fn too_full(replicas: &[ReplicaStatus], enough: usize) -> Option<String> {
    let full: Vec<&str> = replicas
        .iter()
        .filter(|replica| replica.full)
        .map(|replica| replica.address.as_str())
        .collect();
    let left = replicas
        .iter()
        .filter(|replica| replica.up && !replica.full);
    (!full.is_empty() && left.count() < enough).then(|| full.join(", "))
}

#[cfg(test)]
mod tests {
    use dax::memory::MemoryCluster;

    use super::*;

    /// A branch in full zones was waited for as long as `--within` says, without a word.
    #[tokio::test]
    async fn nothing_is_made_in_zones_without_room() {
        let cluster = MemoryCluster::new(dax::storage::VolumeSettings::default());
        let storage: Arc<dyn Storage> = cluster.client();
        cluster.set_full(true);
        let forever = Box::pin(std::future::pending::<Result<(), Error>>());
        let error = unless_full(&storage, forever).await.unwrap_err();
        let expected = "no room in the zones at memory:0, memory:1";
        assert!(error.to_string().contains(expected), "{error}");
        let done = Box::pin(std::future::ready(Ok::<_, Error>(7)));
        assert_eq!(unless_full(&storage, done).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn as_many_as_a_commit_needs_are_enough() {
        let cluster = MemoryCluster::new(dax::storage::VolumeSettings::default());
        let mut replicas = cluster.client().replicas();
        assert_eq!(too_full(&replicas, 2), None);
        replicas[0].full = true;
        assert_eq!(too_full(&replicas, 2), None);
        replicas[1].up = false;
        assert_eq!(too_full(&replicas, 2).as_deref(), Some("memory:0"));
        replicas[0].full = false;
        assert_eq!(
            too_full(&replicas, 2),
            None,
            "zones that are away are waited for, as always"
        );
    }
}
