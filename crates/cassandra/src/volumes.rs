//! Making and removing volumes, also where several commands are at it, or one was interrupted: each can be repeated.
//!
//! ```text
//!   create:  the parent's row names the child ──▶ the child's row            remove:  no child needs it ──▶ removed, for good
//! ```
//!
//! Invariants: a volume is removed only if each child that its row names says in its own row that it does not need it; no row says
//! that yet, so it counts. Whoever adds a child changes the row, so a removal that has looked before is refused.

use async_trait::async_trait;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::VolumeName;
use dax::layer::{Layer, MAX_LAYERS};
use dax::storage::VolumeSettings;

use crate::entry::{Entry, There};

/// The rows, changed by lightweight transactions alone.
#[async_trait]
pub(crate) trait Table: Send + Sync {
    /// The text that stands there, after whatever was under way is completed or buried.
    async fn read(&self, volume: &VolumeName) -> Result<Option<String>>;

    /// Writes a row where there is none. Who wants to know whether it did reads.
    async fn insert(&self, volume: &VolumeName, text: &str) -> Result<()>;

    /// Writes the text if it is as expected. The same.
    async fn change(&self, volume: &VolumeName, from: &str, to: &str) -> Result<()>;
}

type Row = Option<(String, Entry)>;

async fn row(table: &dyn Table, volume: &VolumeName) -> Result<Row> {
    let Some(text) = table.read(volume).await? else {
        return Ok(None);
    };
    let entry = Entry::parse(volume, &text)?;
    Ok(Some((text, entry)))
}

/// Makes a volume.
///
/// # Errors
/// `Conflict` if it exists with other settings, or it or its parent was removed; `NotFound` if there is no parent; `Invalid` if
/// the settings do not fit that.
pub(crate) async fn create(
    table: &dyn Table,
    volume: &VolumeName,
    settings: &VolumeSettings,
) -> Result<()> {
    if let Some(layer) = &settings.layer {
        adopt(table, volume, settings, layer).await?;
    }
    let entry = Entry::new(settings);
    table.insert(volume, &entry.text()).await?;
    match row(table, volume).await? {
        Some((_, Entry::There(there))) if there.settings == *settings => Ok(()),
        Some((_, Entry::There(there))) => Err(conflict(format!(
            "volume {volume} exists with other settings: {:?}",
            there.settings
        ))),
        Some((_, Entry::Removed(_))) => Err(conflict(format!(
            "volume {volume} was removed: give the new one another name"
        ))),
        None => Err(Error::new(
            ErrorKind::Unavailable,
            format!("volume {volume} may have been made: try again"),
        )),
    }
}

/// The parent's row names the child from now on.
async fn adopt(
    table: &dyn Table,
    child: &VolumeName,
    settings: &VolumeSettings,
    layer: &Layer,
) -> Result<()> {
    let parent = &layer.parent;
    loop {
        let (text, mut there) = match row(table, parent).await? {
            Some((text, Entry::There(there))) => (text, there),
            Some((_, Entry::Removed(_))) => {
                return Err(conflict(format!("volume {parent} was removed")));
            }
            None => {
                let text = format!("no volume {parent} in the keyspace to lay {child} over");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        };
        settings.check_parent(&there.settings)?;
        if parent == child || layers(table, parent, &there.settings).await?.len() >= MAX_LAYERS {
            return Err(too_deep(child));
        }
        if !there.children.insert(child.clone()) {
            return Ok(());
        }
        let new = Entry::There(there).text();
        table.change(parent, &text, &new).await?;
    }
}

/// The layers of a volume: its own, that of the volume below, and so on.
///
/// # Errors
/// `Unavailable` if one of the volumes below cannot be found: nobody knows then what the volume shows.
pub(crate) async fn layers(
    table: &dyn Table,
    volume: &VolumeName,
    settings: &VolumeSettings,
) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let mut next = settings.layer.as_deref().cloned();
    while let Some(layer) = next {
        if layers.len() == MAX_LAYERS {
            return Err(too_deep(volume));
        }
        let Some((_, Entry::There(below))) = row(table, &layer.parent).await? else {
            let text = format!(
                "volume {volume} lies over {}, which is not in the keyspace",
                layer.parent
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        layers.push(layer);
        next = below.settings.layer.map(|layer| *layer);
    }
    Ok(layers)
}

/// The layers of a volume, as its row says now; none if it was removed.
///
/// # Errors
/// As [`layers`].
pub(crate) async fn below(table: &dyn Table, volume: &VolumeName) -> Result<Option<Vec<Layer>>> {
    match row(table, volume).await? {
        Some((_, Entry::There(there))) => layers(table, volume, &there.settings).await.map(Some),
        _ => Ok(None),
    }
}

/// Marks a volume as removed, also one that was not made; nothing of its blocks is needed from then on. Returns the volume
/// that it was laid over.
///
/// # Errors
/// `Conflict` if others are laid over it, which the message names.
pub(crate) async fn remove(table: &dyn Table, volume: &VolumeName) -> Result<Option<VolumeName>> {
    loop {
        match row(table, volume).await? {
            None => table.insert(volume, &Entry::Removed(None).text()).await?,
            Some((_, Entry::Removed(parent))) => return Ok(parent),
            Some((text, Entry::There(there))) => {
                check_children(table, volume, &there).await?;
                let parent = there.settings.layer.map(|layer| layer.parent);
                let new = Entry::Removed(parent).text();
                table.change(volume, &text, &new).await?;
            }
        }
    }
}

async fn check_children(table: &dyn Table, volume: &VolumeName, there: &There) -> Result<()> {
    let mut over = Vec::new();
    for child in &there.children {
        let row = row(table, child).await?;
        if !row.is_some_and(|(_, child)| child.leaves(volume)) {
            over.push(child.as_str());
        }
    }
    match over.is_empty() {
        true => Ok(()),
        false => Err(conflict(format!(
            "volume {volume} stays: {} lies over it",
            over.join(", ")
        ))),
    }
}

/// The volume lies over none from now on. Returns the one that it was laid over.
///
/// # Errors
/// `NotFound` if it was removed.
pub(crate) async fn detach(table: &dyn Table, volume: &VolumeName) -> Result<Option<VolumeName>> {
    let mut parent = None;
    loop {
        let Some((text, Entry::There(mut there))) = row(table, volume).await? else {
            let text = format!("volume {volume} was removed");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        match there.settings.layer.take() {
            Some(layer) => parent = Some(layer.parent),
            None => return Ok(parent),
        }
        let new = Entry::There(there).text();
        table.change(volume, &text, &new).await?;
    }
}

/// The parent's row need not name a child that was removed any more.
pub(crate) async fn disown(
    table: &dyn Table,
    parent: &VolumeName,
    child: &VolumeName,
) -> Result<()> {
    while let Some((text, Entry::There(mut there))) = row(table, parent).await?
        && there.children.remove(child)
    {
        let new = Entry::There(there).text();
        table.change(parent, &text, &new).await?;
    }
    Ok(())
}

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message)
}

fn too_deep(child: &VolumeName) -> Error {
    let text = format!("volume {child} would have more than {MAX_LAYERS} volumes below it");
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::task::{Context, Poll, Waker};

    use dax::ids::{Epoch, Generation};
    use dax::storage::Lineage;
    use futures_util::future::BoxFuture;
    use parking_lot::Mutex;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Rows in memory. Each request takes two steps, and is carried out in one of them.
    #[derive(Default)]
    struct Rows(Mutex<BTreeMap<VolumeName, String>>);

    async fn step() {
        let mut done = false;
        std::future::poll_fn(|_| match std::mem::replace(&mut done, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    #[async_trait]
    impl Table for Rows {
        async fn read(&self, volume: &VolumeName) -> Result<Option<String>> {
            step().await;
            Ok(self.0.lock().get(volume).cloned())
        }

        async fn insert(&self, volume: &VolumeName, text: &str) -> Result<()> {
            step().await;
            let name = volume.clone();
            self.0.lock().entry(name).or_insert(text.to_owned());
            step().await;
            Ok(())
        }

        async fn change(&self, volume: &VolumeName, from: &str, to: &str) -> Result<()> {
            step().await;
            if let Some(text) = self.0.lock().get_mut(volume).filter(|text| *text == from) {
                to.clone_into(text);
            }
            step().await;
            Ok(())
        }
    }

    impl Rows {
        fn entry(&self, name: &str) -> Option<Entry> {
            let name = volume(name);
            let text = self.0.lock().get(&name).cloned();
            text.map(|text| Entry::parse(&name, &text).unwrap())
        }

        fn is_there(&self, name: &str) -> bool {
            matches!(self.entry(name), Some(Entry::There(_)))
        }
    }

    fn volume(name: &str) -> VolumeName {
        VolumeName::new(name).unwrap()
    }

    fn over(parent: &str, epoch: u32) -> VolumeSettings {
        let end = Generation {
            epoch: Epoch(epoch),
            number: 5,
        };
        VolumeSettings::default().under(Layer {
            parent: volume(parent),
            image: Lineage::up_to(end),
            first_epoch: Epoch(epoch + 1),
            proof: None,
        })
    }

    fn poll<T>(task: &mut BoxFuture<'_, T>) -> Option<T> {
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn run<T>(mut task: BoxFuture<'_, T>) -> T {
        loop {
            if let Some(result) = poll(&mut task) {
                return result;
            }
        }
    }

    async fn make(rows: &Rows, name: &str, settings: VolumeSettings) -> Result<()> {
        create(rows, &volume(name), &settings).await
    }

    async fn take(rows: &Rows, name: &str) -> Result<()> {
        let name = volume(name);
        match remove(rows, &name).await? {
            Some(parent) => disown(rows, &parent, &name).await,
            None => Ok(()),
        }
    }

    fn family() -> Rows {
        let rows = Rows::default();
        run(Box::pin(make(&rows, "p", VolumeSettings::default()))).unwrap();
        rows
    }

    // hazard: LAYER-6
    #[test]
    fn a_volume_with_others_over_it_stays_and_its_name_is_not_used_again() {
        let rows = family();
        for child in ["a", "b"] {
            run(Box::pin(make(&rows, child, over("p", 3)))).unwrap();
            run(Box::pin(make(&rows, child, over("p", 3)))).unwrap();
        }
        let refused = run(Box::pin(take(&rows, "p"))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(
            refused.to_string().contains("a, b lies over it"),
            "{refused}"
        );
        for name in ["a", "b", "p", "p"] {
            run(Box::pin(take(&rows, name))).unwrap();
        }
        for (name, settings) in [("p", VolumeSettings::default()), ("c", over("p", 3))] {
            let refused = run(Box::pin(make(&rows, name, settings))).unwrap_err();
            assert!(refused.to_string().contains("p was removed"), "{refused}");
        }
        assert_eq!(rows.entry("c"), None);
    }

    // hazard: LAYER-6
    #[test]
    fn a_volume_that_was_filled_needs_no_parent_and_keeps_its_children() {
        let rows = family();
        run(Box::pin(make(&rows, "a", over("p", 3)))).unwrap();
        run(Box::pin(make(&rows, "b", over("a", 5)))).unwrap();
        let detached = run(Box::pin(detach(&rows, &volume("a")))).unwrap();
        assert_eq!(detached, Some(volume("p")));
        assert_eq!(run(Box::pin(detach(&rows, &volume("a")))).unwrap(), None);
        let found = run(Box::pin(layers(&rows, &volume("b"), &over("a", 5)))).unwrap();
        assert_eq!(found.len(), 1, "and nobody looks for the parent below it");
        // Whether or not the parent's row names it still.
        run(Box::pin(take(&rows, "p"))).unwrap();
        run(Box::pin(take(&rows, "a"))).unwrap_err();
        run(Box::pin(take(&rows, "b"))).unwrap();
        run(Box::pin(take(&rows, "a"))).unwrap();
        run(Box::pin(detach(&rows, &volume("a")))).unwrap_err();
    }

    #[test]
    fn a_chain_has_an_end_and_no_circle() {
        let rows = family();
        let of = |number: usize| match number {
            0 => "p".to_owned(),
            number => format!("c{number}"),
        };
        for number in 1..=MAX_LAYERS {
            let settings = over(&of(number - 1), number as u32);
            run(Box::pin(make(&rows, &of(number), settings))).unwrap();
        }
        let last = over(&of(MAX_LAYERS), 99);
        let deep = run(Box::pin(make(&rows, "deep", last.clone()))).unwrap_err();
        assert_eq!(deep.kind(), ErrorKind::Invalid, "{deep}");
        let found = run(Box::pin(layers(&rows, &volume("deep"), &over("c1", 9)))).unwrap();
        let parents: Vec<_> = found.iter().map(|layer| layer.parent.as_str()).collect();
        assert_eq!(parents, ["c1", "p"]);
        for (name, settings) in [("own", over("own", 1)), ("p", over("c1", 9))] {
            run(Box::pin(make(&rows, name, settings))).unwrap_err();
        }
        assert_eq!(
            run(Box::pin(make(&rows, "x", over("nobody", 1)))).map_err(|e| e.kind()),
            Err(ErrorKind::NotFound)
        );
        rows.0.lock().remove(&volume("p"));
        let lost = run(Box::pin(layers(&rows, &volume("c1"), &over("p", 1)))).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
    }

    /// Two commands make children, one removes the parent and one a child, in any order of their steps; some end in the middle.
    // hazard: LAYER-6
    #[test]
    fn commands_at_the_same_time_leave_no_volume_without_what_it_lies_over() {
        let (mut made, mut removed) = (0, 0);
        for seed in 0..4000 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let rows = family();
            if rng.random_bool(0.5) {
                run(Box::pin(make(&rows, "a", over("p", 3)))).unwrap();
            }
            let mut tasks: Vec<BoxFuture<'_, Result<()>>> = vec![
                Box::pin(make(&rows, "a", over("p", 3))),
                Box::pin(make(&rows, "b", over("p", 3))),
                Box::pin(take(&rows, "p")),
                Box::pin(take(&rows, "a")),
            ];
            while !tasks.is_empty() {
                let at = rng.random_range(0..tasks.len());
                if poll(&mut tasks[at]).is_some() || rng.random_bool(0.05) {
                    drop(tasks.swap_remove(at));
                }
                for child in ["a", "b"] {
                    assert!(!rows.is_there(child) || rows.is_there("p"), "seed {seed}");
                }
            }
            made += u32::from(rows.is_there("b"));
            // Whatever was interrupted, the same commands finish it.
            for name in ["a", "b", "p"] {
                run(Box::pin(take(&rows, name))).unwrap();
            }
            removed += u32::from(!rows.is_there("p"));
        }
        assert!(made > 1000 && removed == 4000, "{made}, {removed}");
    }
}
