//! A client between its login and its session.

use std::sync::Arc;

use crate::core::session::Session;

use super::super::catalog::Functions;
use super::super::handle::Handle;
use super::super::pool::{Held, Pool};

/// Share of a client that is let in: what it has from the beginning.
pub struct Admitted {
    /// Itself, as others see it.
    pub handle: Arc<Handle>,
    /// Pool that its servers come from.
    pub pool: Arc<Pool>,
    /// The functions of its database.
    pub functions: Functions,
    /// The connection that it begins with, in session mode.
    pub held: Option<Held>,
    pub session: Session,
}
