//! The active's view.
mod inherited;
mod observer;
pub use self::inherited::{Inherited, InheritedBlocks};
pub use self::observer::{NoObserver, WriteObserver};
use crate::error::Result;
use bytes::Bytes;
/// The active's view.
pub struct ActiveView;
impl ActiveView {
    /// Durable.
    pub async fn write_control(&self, _data: Bytes) -> Result<()> {
        Ok(())
    }
}
