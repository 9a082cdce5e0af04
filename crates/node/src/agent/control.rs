//! What operators want of the whole cluster, as far as the machine decides by it.

use std::time::Duration;

use coordination::records::{Control, Libraries, edit_control};
use pgserver::HostLibraries;

use super::context::Context;
use super::error::Result;
use crate::machine::Event;

/// How long other editors may keep the note waiting.
const NOTE_WITHIN: Duration = Duration::from_secs(30);

impl Context {
    fn event(&self, control: &Control) -> Event {
        Event::Control {
            paused: control.is_paused(),
            standbys: control.wanted_standbys(),
            fits: self.misfit_with(control).is_none(),
        }
    }

    /// What is known of it, as the machine is told.
    pub(super) fn known_control(&self) -> Event {
        self.event(&self.control.borrow())
    }

    /// Reads it afresh and tells the machine.
    pub(super) async fn load_control(&self) -> Result<()> {
        let control = Control::read(self.registry.as_ref()).await?;
        self.driver.tell(self.event(&control));
        Ok(())
    }

    /// Why texts would sort otherwise on this node than in the volume's indexes.
    pub(super) fn misfit(&self) -> Option<String> {
        self.misfit_with(&self.control.borrow())
    }

    fn misfit_with(&self, control: &Control) -> Option<String> {
        self.libraries.misfit(control, self.built_with.as_ref())
    }

    /// Notes this host's libraries as the volume's, for a database of an earlier version, which has no note of any.
    pub(super) fn note_libraries(&self) {
        if self.built_with.is_some() || self.control.borrow().libraries.is_some() {
            return;
        }
        let (registry, libraries) = (self.registry.clone(), self.libraries.clone());
        let by = self.me.node.clone();
        tokio::spawn(async move {
            let note = |control: &mut Control| {
                control.libraries.get_or_insert(libraries.clone());
                Ok(())
            };
            let noted = edit_control(registry.as_ref(), by.as_str(), None, NOTE_WITHIN, note).await;
            if let Err(error) = noted {
                tracing::info!(%error, "the volume's libraries are noted at the next takeover");
            }
        });
    }
}

/// Versions of this host, as records have them.
pub(crate) fn libraries_of(host: HostLibraries) -> Libraries {
    Libraries {
        glibc: host.glibc,
        icu: host.icu,
        tzdata: host.tzdata,
    }
}
