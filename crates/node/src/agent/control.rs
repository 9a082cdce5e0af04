//! What operators want of the whole cluster, as far as the machine decides by it.

use coordination::records::Control;

use super::context::Context;
use super::error::Result;
use crate::machine::Event;

fn event(control: &Control) -> Event {
    Event::Control {
        paused: control.is_paused(),
        standbys: control.wanted_standbys(),
    }
}

impl Context {
    /// What is known of it, as the machine is told.
    pub(super) fn known_control(&self) -> Event {
        event(&self.control.borrow())
    }

    /// Reads it afresh and tells the machine.
    pub(super) async fn load_control(&self) -> Result<()> {
        let control = Control::read(self.registry.as_ref()).await?;
        self.driver.tell(event(&control));
        Ok(())
    }
}
