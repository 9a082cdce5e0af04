//! Volumes that share blocks: those that lie over each other, or over the same one.

use std::collections::BTreeSet;
use std::sync::Arc;

use dax::ids::VolumeName;
use dax::storage::{Relative, Usage};

use crate::volume::{Volume, Volumes};

impl Volumes {
    /// Usage of a volume, and of those that it shares blocks with.
    pub fn usage_of(&self, volume: &Volume) -> Usage {
        let mut usage = volume.usage();
        let parent = |name: &VolumeName| {
            let layer = self.get(name)?.settings.layer.clone();
            layer.map(|layer| layer.parent)
        };
        let mut first = volume.name.clone();
        while let Some(below) = parent(&first) {
            first = below;
        }
        let mut family = BTreeSet::new();
        let mut next = vec![first];
        while let Some(name) = next.pop() {
            next.extend(self.children(&name));
            family.insert(name);
        }
        family.remove(&volume.name);
        let relatives = family.into_iter().filter_map(|name| self.get(&name));
        usage.relatives = relatives
            .map(|relative| Relative {
                volume: relative.name.clone(),
                used_bytes: relative.used_bytes(),
            })
            .collect();
        usage
    }

    /// Names of the volumes that were laid over one.
    fn children(&self, parent: &VolumeName) -> BTreeSet<VolumeName> {
        let is_over = |volume: &&Arc<Volume>| {
            let layer = volume.settings.layer.as_ref();
            layer.is_some_and(|layer| layer.parent == *parent) && !volume.is_removed()
        };
        let all = self.all();
        let children = all.iter().filter(is_over);
        children.map(|volume| volume.name.clone()).collect()
    }
}
