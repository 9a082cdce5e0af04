//! What can be learnt from the end of PostgreSQL's log.

/// The last line that says why a server ended, if any does.
pub fn reason(lines: &[String]) -> Option<&str> {
    let says = |level: &str| lines.iter().rev().find(|l| l.contains(level));
    says("PANIC:  ")
        .or_else(|| says("FATAL:  "))
        .map(String::as_str)
}

/// True if the server ended because it could not redo the log. Attaching at the same seal again
/// would end in the same way.
pub fn redo_failed(lines: &[String]) -> bool {
    let fatal = |l: &String| l.contains("FATAL:  ") || l.contains("PANIC:  ");
    let Some(last) = lines.iter().rposition(fatal) else {
        return false;
    };
    let during_redo = |l: &String| l.contains("CONTEXT:  WAL redo at ");
    let by_itself = [
        "WAL contains references to invalid pages",
        "could not locate a valid checkpoint record",
    ];
    by_itself.iter().any(|s| lines[last].contains(s))
        || lines[last + 1..].iter().take(3).any(during_redo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    // hazard: N7
    #[test]
    fn redo_failures_are_told_from_others() {
        let redo = lines(
            "LOG:  redo starts\nPANIC:  could not open file \"base/5/2\"\nCONTEXT:  WAL redo at 0/5 for Heap/INSERT\nLOG:  startup process was terminated",
        );
        assert!(redo_failed(&redo));
        assert_eq!(
            reason(&redo),
            Some("PANIC:  could not open file \"base/5/2\"")
        );
        assert!(redo_failed(&lines(
            "PANIC:  WAL contains references to invalid pages"
        )));
        assert!(!redo_failed(&lines(
            "FATAL:  could not create any TCP/IP sockets"
        )));
        // A warning in redo long before another death is not why it died.
        assert!(!redo_failed(&lines(
            "WARNING:  x\nCONTEXT:  WAL redo at 0/5\nFATAL:  out of memory"
        )));
        assert!(!redo_failed(&[]));
    }
}
