//! The meaning of `synchronous_standby_names`: whom commits wait for.
//!
//! Invariant: a commit goes on without somebody only if the setting lets it. `FIRST` and `ANY` let commits go on without any of those
//! named, as soon as enough others are connected, unless as many are waited for as are named.

/// True if every commit waits for the standby of this name.
pub fn waits_for(setting: &str, name: &str) -> bool {
    let (head, list) = match setting.split_once('(') {
        Some((head, list)) => (head, list.trim_end().trim_end_matches(')')),
        None => ("1", setting),
    };
    let count = head.split_whitespace().next_back();
    let count: usize = count.and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = names(list);
    names.iter().any(|one| one == name) && count >= names.len()
}

/// The names of a list, which may be quoted.
fn names(list: &str) -> Vec<String> {
    let (mut names, mut name) = (Vec::new(), String::new());
    let mut is_quoted = false;
    for letter in list.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => names.push(std::mem::take(&mut name)),
            letter if letter.is_whitespace() && !is_quoted => {}
            // PostgreSQL compares them without regard to case.
            letter => name.extend(letter.to_lowercase()),
        }
    }
    names.push(name);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name alone was looked for: commits went on without the manager as soon as somebody else was connected.
    // hazard: MIRROR-71
    #[test]
    fn all_that_are_named_must_be_waited_for() {
        let waits = |setting: &str| waits_for(setting, "manager");
        for setting in [
            "manager",
            " Manager ",
            "\"manager\"",
            "1 (manager)",
            "FIRST 1 (manager)",
            "ANY 2 (other, manager)",
            "2 (\"manager\", \"a, b\")",
        ] {
            assert!(waits(setting), "{setting}");
        }
        for setting in [
            "",
            "*",
            "other",
            "manager, other",
            "1 (manager, other)",
            "ANY 1 (manager, other)",
            "FIRST 2 (manager, other, third)",
            "managers",
        ] {
            assert!(!waits(setting), "{setting}");
        }
    }
}
