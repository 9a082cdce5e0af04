//! What a session has found out, and does not find out again: what its statements become, and what its settings are.
//!
//! Invariant: a plan is that of the same text, the same catalog and the same names; settings are those since the last statement
//! that may have changed them, and no older than [`SETTINGS_LAST`], because the server's own files may change, too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::record::Statement;
use crate::sql::{Facts, Plan, Session as Names};

/// What a text's statements become.
pub type Plans = Arc<[(String, Plan)]>;

/// How long settings are taken to be what they were.
const SETTINGS_LAST: Duration = Duration::from_secs(1);
/// So many texts are kept.
const MOST: usize = 256;
/// A longer one is not worth its memory.
const MOST_BYTES: usize = 8 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    plans: HashMap<(String, bool), Plans>,
    facts: Option<Arc<Facts>>,
    names: Names,
    settings: Option<(Instant, Statement)>,
}

impl Memory {
    /// These are the catalog and the names now; whether the catalog is another one than before.
    pub fn go_by(&mut self, facts: &Arc<Facts>, names: &Names) -> bool {
        let known = self.facts.as_ref();
        let is_other = !known.is_some_and(|known| Arc::ptr_eq(known, facts));
        if is_other || self.names != *names {
            self.plans.clear();
            self.facts = Some(facts.clone());
            self.names = names.clone();
        }
        is_other
    }

    /// The plans of a text.
    pub fn plans(&self, text: &str, ships: bool) -> Option<Plans> {
        self.plans.get(&(text.to_owned(), ships)).cloned()
    }

    /// These are the plans of a text.
    pub fn learn(&mut self, text: &str, ships: bool, plans: &Plans) {
        if self.plans.len() >= MOST {
            self.plans.clear();
        }
        if text.len() <= MOST_BYTES {
            self.plans.insert((text.to_owned(), ships), plans.clone());
        }
    }

    /// What sets the other member's session to what this one is.
    pub fn settings(&self) -> Option<Statement> {
        let (since, statement) = self.settings.as_ref()?;
        (since.elapsed() <= SETTINGS_LAST).then(|| statement.clone())
    }

    /// The settings were just read.
    pub fn learn_settings(&mut self, statement: Statement) {
        self.settings = Some((Instant::now(), statement));
    }

    /// The settings may be others.
    pub fn forget_settings(&mut self) {
        self.settings = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_forgotten_with_what_it_goes_by() {
        let (facts, mut names) = (Arc::new(Facts::default()), Names::default());
        let mut memory = Memory::default();
        let plans: Plans = Arc::new([]);
        assert!(memory.go_by(&facts, &names));
        memory.learn("SELECT 1", false, &plans);
        assert!(!memory.go_by(&facts, &names));
        assert!(memory.plans("SELECT 1", false).is_some());
        assert!(memory.plans("SELECT 1", true).is_none());
        names.search_path.push("elsewhere".to_owned());
        assert!(!memory.go_by(&facts, &names));
        assert!(memory.plans("SELECT 1", false).is_none());
        memory.learn("SELECT 1", false, &plans);
        assert!(memory.go_by(&Arc::new(Facts::default()), &names));
        assert!(memory.plans("SELECT 1", false).is_none());
    }
}
