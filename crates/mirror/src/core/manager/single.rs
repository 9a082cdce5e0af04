//! A manager of one member that nobody mirrors yet: clients have the addresses, the logins and the refusals of a mirror, and
//! nothing is logged.
//!
//! ```text
//!   recovering ──▶ single ──▶ recovering      its member answers; it does not any more
//! ```
//!
//! Invariant: a member that belongs to a mirror is never served singly. What was written to it that way the log would not have, so
//! the other member would lack it for ever.

use super::{Effect, Manager, Role, Why};

impl Manager {
    /// The only member answers: it is served, unless it belongs to a mirror.
    pub fn single_up(&mut self, is_mirrored: bool, out: &mut Vec<Effect>) {
        self.life.0 += 1;
        if is_mirrored {
            self.role = Role::Recovering(Why::Mirrored);
            return;
        }
        self.role = Role::Single;
        out.push(Effect::Serve);
    }

    /// The only member does not answer any more.
    pub(super) fn single_down(&mut self, out: &mut Vec<Effect>) {
        if self.role == Role::Single {
            out.push(Effect::Unserve);
        }
        self.role = Role::Recovering(Why::NoMember);
    }
}
