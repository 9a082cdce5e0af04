//! What POSIX promises, over real FUSE: the same cases for every view and both ways of caching.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod bookkeeping;
mod contents;
mod differential;
mod directories;
mod names;
mod on_active;
mod on_memory;
mod on_standby;
mod space;

/// Makes one test of each case: `make` builds a mounted fixture, cases get its root.
#[macro_export]
macro_rules! posix_cases {
    ($make:path, $($module:ident: $($case:ident),*;)*) => { $(
        mod $module { $(
            #[test]
            fn $case() {
                let fixture = $make();
                $crate::$module::$case(fixture.root());
            }
        )* }
    )* };
}

/// What a file system does with the contents of files.
#[macro_export]
macro_rules! posix_contents {
    ($make:path) => {
        $crate::posix_cases!($make,
            contents: odd_offsets, append, exclusive_create, truncating_open, shrink_and_grow,
                sparse, concurrent_writers, mapped_reading, mapped_shared_writing, large_writes,
                unlinked_while_open, two_handles_agree, short_read_at_the_end;
            space: holes_read_as_zeros, fallocate_extends, fallocate_keeps_size, punched_holes,
                zero_range, seek_data_and_hole, room;
            differential: same_as_a_local_directory;
        );
    };
}

/// What every view does with names and attributes.
#[macro_export]
macro_rules! posix_names {
    ($make:path) => {
        $crate::posix_cases!($make,
            names: hard_links, symbolic_links, rename_over, rename_no_replace, rename_exchange,
                rename_directories, rename_into_itself, long_names, deep_paths, special_files,
                not_a_directory, negative_names, odd_names;
            directories: many_names_while_removing, rewinding, removing_directories, syncing,
                removed_while_open, working_directory;
            attributes: modes, umask, owners, times, set_id_bits_go, group_of_directory,
                other_users, no_extended_attributes, locks, sticky_directory;
        );
    };
}
