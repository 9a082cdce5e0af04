//! What POSIX promises, over real FUSE: the same cases for every view and both ways of caching.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod contents;
mod differential;
mod directories;
mod names;
mod on_active;
mod on_memory;
mod space;

/// Makes one test of each case: `make` builds a mounted fixture, cases get its root.
#[macro_export]
macro_rules! posix_suite {
    ($make:path) => {
        $crate::posix_suite!(@ $make, contents: odd_offsets, append, exclusive_create,
            truncating_open, shrink_and_grow, sparse, concurrent_writers, mapped_reading,
            mapped_shared_writing, large_writes, unlinked_while_open, two_handles_agree,
            short_read_at_the_end);
        $crate::posix_suite!(@ $make, space: holes_read_as_zeros, fallocate_extends, fallocate_keeps_size,
            punched_holes, zero_range, seek_data_and_hole, room);
        $crate::posix_suite!(@ $make, names: hard_links, symbolic_links, rename_over,
            rename_no_replace, rename_exchange, rename_directories, rename_into_itself, long_names,
            deep_paths, special_files, not_a_directory, negative_names, odd_bytes);
        $crate::posix_suite!(@ $make, directories: many_names_while_removing, rewinding,
            removing_directories, link_counts, syncing, removed_while_open, working_directory);
        $crate::posix_suite!(@ $make, attributes: modes, umask, owners, times, times_move, set_id_bits_go,
            group_of_directory, other_users, no_extended_attributes, locks, sticky_directory);
        $crate::posix_suite!(@ $make, differential: same_as_a_local_directory);
    };
    (@ $make:path, $module:ident: $($case:ident),* $(,)?) => {
        mod $module { $(
            #[test]
            fn $case() {
                let fixture = $make();
                $crate::$module::$case(fixture.root());
            }
        )* }
    };
}
