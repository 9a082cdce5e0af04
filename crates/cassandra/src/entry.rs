//! The row of a volume in the table `volumes`: its settings, and the volumes that are laid over it.
//!
//! ```text
//!   no row ──made──▶ there, with children that come and go ──nobody lies over it──▶ removed
//! ```
//!
//! Pure. A row is changed by compare-and-set over its whole text. The text of a volume without a layer is its settings, as it
//! always was; that of a layered one cannot be read by a program that knows nothing of layers, which would miss the volume below.
//!
//! Invariants: a child is named by the row of its parent before it has one; a removed volume keeps its row, so that its name is
//! not used again.

use std::collections::BTreeSet;

use dax::error::{Error, ErrorKind, Result};
use dax::ids::VolumeName;
use dax::storage::VolumeSettings;
use serde::{Deserialize, Serialize};

/// Contents of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The volume is there.
    There(There),
    /// It was removed, for good. What it was laid over may name it still.
    Removed(Option<VolumeName>),
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct There {
    pub settings: VolumeSettings,
    /// Volumes that are, will be or were laid over it.
    pub children: BTreeSet<VolumeName>,
}

/// The text. Which of them it is, the names tell.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Removed {
        removed: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<VolumeName>,
    },
    Layered {
        layered: VolumeSettings,
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        children: BTreeSet<VolumeName>,
    },
    Plain {
        #[serde(flatten)]
        settings: VolumeSettings,
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        children: BTreeSet<VolumeName>,
    },
}

impl Entry {
    /// Of a new volume.
    pub fn new(settings: &VolumeSettings) -> Entry {
        Entry::There(There {
            settings: settings.clone(),
            children: BTreeSet::new(),
        })
    }

    /// Understands the text of `volume`.
    ///
    /// # Errors
    /// `Protocol` if it cannot be understood, `Invalid` for settings that no volume can have.
    pub fn parse(volume: &VolumeName, text: &str) -> Result<Entry> {
        let text: Text = serde_json::from_str(text).map_err(|e| {
            let what = format!("the settings of volume {volume} cannot be understood");
            Error::with_source(ErrorKind::Protocol, what, e)
        })?;
        let (settings, children) = match text {
            Text::Removed { parent, .. } => return Ok(Entry::Removed(parent)),
            Text::Layered { layered, children } => (layered, children),
            Text::Plain { settings, children } => (settings, children),
        };
        settings.check()?;
        Ok(Entry::There(There { settings, children }))
    }

    pub fn text(&self) -> String {
        let text = match self.clone() {
            Entry::Removed(parent) => Text::Removed {
                removed: true,
                parent,
            },
            Entry::There(There { settings, children }) if settings.layer.is_some() => {
                Text::Layered {
                    layered: settings,
                    children,
                }
            }
            Entry::There(There { settings, children }) => Text::Plain { settings, children },
        };
        serde_json::to_string(&text).expect("settings have string keys only")
    }

    /// True if a row says that its volume does not need `parent`, now or later.
    pub fn leaves(&self, parent: &VolumeName) -> bool {
        let layer = match self {
            Entry::Removed(_) => None,
            Entry::There(there) => there.settings.layer.as_ref(),
        };
        layer.is_none_or(|layer| layer.parent != *parent)
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::{Epoch, Generation};
    use dax::layer::Layer;
    use dax::storage::Lineage;

    use super::*;

    fn name(name: &str) -> VolumeName {
        VolumeName::new(name).unwrap()
    }

    fn layered() -> VolumeSettings {
        let end = Generation {
            epoch: Epoch(3),
            number: 5,
        };
        VolumeSettings::default().under(Layer {
            parent: name("parent"),
            image: Lineage::up_to(end),
            first_epoch: Epoch(7),
            proof: None,
        })
    }

    #[test]
    fn what_is_written_is_read() {
        let volume = name("v");
        let children: BTreeSet<_> = [name("a"), name("b")].into();
        for settings in [VolumeSettings::default(), layered()] {
            for children in [BTreeSet::new(), children.clone()] {
                let there = There {
                    settings: settings.clone(),
                    children,
                };
                let entry = Entry::There(there);
                assert_eq!(Entry::parse(&volume, &entry.text()).unwrap(), entry);
            }
        }
        for parent in [None, Some(name("parent"))] {
            let entry = Entry::Removed(parent);
            assert_eq!(Entry::parse(&volume, &entry.text()).unwrap(), entry);
        }
        let wrong = Entry::parse(&volume, "{}").unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Protocol);
    }

    // hazard: CASS-6
    #[test]
    fn programs_without_layers_read_volumes_without_a_layer_and_no_others() {
        let plain = VolumeSettings::default();
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(Entry::new(&plain).text(), text);
        let mut parent = There {
            settings: plain.clone(),
            children: BTreeSet::new(),
        };
        parent.children.insert(name("a"));
        let read = |entry: &Entry| serde_json::from_str::<VolumeSettings>(&entry.text());
        assert_eq!(read(&Entry::There(parent)).unwrap(), plain);
        read(&Entry::new(&layered())).unwrap_err();
        read(&Entry::Removed(None)).unwrap_err();
    }
}
