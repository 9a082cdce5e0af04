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
    crate::posix_contents!(crate::on_memory::cached);
    crate::posix_names!(crate::on_memory::cached);
    crate::posix_cases!(crate::on_memory::cached, bookkeeping: names_in_no_encoding, link_counts, times_move;);
}

mod kernel_caches_nothing {
    crate::posix_contents!(crate::on_memory::direct);
    crate::posix_names!(crate::on_memory::direct);
    crate::posix_cases!(crate::on_memory::direct, bookkeeping: names_in_no_encoding, link_counts, times_move;);
}
