//! Programs that are built with the tests.

use std::path::PathBuf;

/// The program of an example, which is built with the tests.
pub fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program");
    let target = own.parent().and_then(|deps| deps.parent());
    target
        .expect("a target directory")
        .join("examples")
        .join(name)
}
