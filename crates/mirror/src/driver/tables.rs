//! The member's tables that rows are written to, as its catalog has them.
//!
//! Invariant: a table is that of the definitions which it is asked with.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::rows::write::Table;

/// Tables of the member, as of so many changes of definitions.
#[derive(Default)]
pub struct Tables(Mutex<(u64, HashMap<String, Arc<Table>>)>);

impl Tables {
    /// A table, if it is known as of these definitions.
    pub fn get(&self, definitions: u64, name: &str) -> Option<Arc<Table>> {
        let known = self.0.lock();
        (known.0 == definitions)
            .then(|| known.1.get(name).cloned())
            .flatten()
    }

    /// A table was read.
    pub fn learn(&self, definitions: u64, name: &str, table: &Arc<Table>) {
        let mut known = self.0.lock();
        if known.0 != definitions {
            *known = (definitions, HashMap::new());
        }
        known.1.insert(name.to_owned(), table.clone());
    }
}
