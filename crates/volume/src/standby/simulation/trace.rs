//! What a history does, step by step, for who wants to see it (TRACE=1).

use std::cell::Cell;

thread_local! {
    static PRINTS: Cell<bool> = const { Cell::new(false) };
}

/// True if histories of this thread are printed.
pub(super) fn print(prints: bool) {
    PRINTS.set(prints);
}

/// Tells of a step, if anybody wants to know.
pub(super) fn say(text: impl FnOnce() -> String) {
    if PRINTS.get() {
        println!("{}", text());
    }
}
