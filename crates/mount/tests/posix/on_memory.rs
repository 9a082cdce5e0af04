//! The suite over the test double.

use std::sync::Arc;

use crate::common::fixture::Fixture;
use crate::common::ram::{Caching, RamView};

pub fn cached() -> Fixture {
    Fixture::new(Arc::new(RamView::new(Caching::All)))
}

pub fn direct() -> Fixture {
    Fixture::new(Arc::new(RamView::new(Caching::Nothing)))
}

mod kernel_caches {
    crate::posix_suite!(crate::on_memory::cached);
}

mod kernel_caches_nothing {
    crate::posix_suite!(crate::on_memory::direct);
}
