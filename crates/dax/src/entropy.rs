//! Random bytes from the system: the only ones that secrets and ids are made of.

use crate::error::{Error, ErrorKind, Result};

/// Random bytes from the system.
///
/// # Errors
/// `Unavailable` if it has none.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        let message = "the system gives no random numbers";
        Error::with_source(ErrorKind::Unavailable, message, error)
    })
}
