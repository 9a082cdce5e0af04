//! What operators want of the whole cluster, as far as the machine decides by it.

use std::time::Duration;

use coordination::records::{Control, edit_control};

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

    fn misfit_with(&self, control: &Control) -> Option<String> {
        control.misfit(&self.libraries, self.built_with.as_ref())
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
