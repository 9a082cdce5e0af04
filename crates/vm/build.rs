//! Compiles the library that QEMU loads (`src/host/preload.c`), which the crate then contains.
//!
//! It runs in QEMU's process, so it cannot be part of a Rust program, and a file of its own would have to be found at
//! run time. The C compiler is the one that links every Rust program.

use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/host/preload.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CC");
    let directory = std::env::var("OUT_DIR").expect("cargo gives build scripts a directory");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args([
            "-shared", "-fPIC", "-O2", "-s", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .arg(Path::new(&directory).join("preload.so"))
        .arg(SOURCE)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{compiler} {SOURCE}: {status}"),
        Err(error) => panic!("cannot run the C compiler {compiler}: {error}"),
    }
}
