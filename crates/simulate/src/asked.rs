//! What whoever runs a simulation asks for, by the environment: `SEED`, `SEEDS`, `FIRST`, `TRACE`, `FLAW`.

use std::fmt::Debug;

/// A setting; none if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A setting that is a number.
///
/// # Panics
/// If it is none.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = setting(name)?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: use a number")))
}

/// True if every step shall be printed.
pub(crate) fn trace() -> bool {
    number("TRACE") == Some(1)
}

/// The rule that `FLAW` names, to be switched off.
///
/// # Panics
/// If it is none of `all`.
pub(crate) fn flaw<F: Copy + Debug>(all: &[F]) -> Option<F> {
    let name = setting("FLAW")?;
    let known = all.iter().find(|flaw| format!("{flaw:?}") == name);
    Some(*known.unwrap_or_else(|| panic!("FLAW={name}: use one of {all:?}")))
}
