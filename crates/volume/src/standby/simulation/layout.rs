//! The model's paths: databases under `base`, the control file, and the log's directory.

use std::ops::Range;

use super::flaw::Flaw;
use super::page::File;
use crate::layout::{FileClass, Layout};
use crate::lsn::Lsn;

pub(super) const CONTROL: &str = "global/pg_control";

pub(super) struct ModelLayout {
    pub flaw: Option<Flaw>,
}

impl Layout for ModelLayout {
    fn class(&self, path: &str) -> FileClass {
        match path {
            CONTROL => FileClass::Live,
            _ => FileClass::Data,
        }
    }

    fn standby_class(&self, path: &str) -> FileClass {
        match path {
            CONTROL => FileClass::Private,
            _ => self.class(path),
        }
    }

    fn hidden_on_standby(&self, _: &str) -> bool {
        false
    }

    fn hidden_by(&self, name: &str) -> Option<String> {
        let is_init = name.ends_with("_init");
        let number = name.split('_').next()?;
        let shown = is_init || self.flaw == Some(Flaw::UnloggedShown);
        let _ = File::parse(0, name)?;
        (!shown).then(|| format!("{number}_init"))
    }

    fn main_of(&self, name: &str) -> Option<String> {
        let (number, _) = name.split_once('_')?;
        Some(number.to_owned())
    }

    /// The log is handed over by the model itself.
    fn log_range(&self, _: &str) -> Option<Range<Lsn>> {
        None
    }

    fn private_directories(&self, standby: bool) -> Vec<String> {
        match standby {
            true => vec!["global".into()],
            false => Vec::new(),
        }
    }

    fn published_at_switch(&self) -> Vec<String> {
        match self.flaw {
            Some(Flaw::ControlNotPublished) => Vec::new(),
            _ => vec![CONTROL.into()],
        }
    }
}
