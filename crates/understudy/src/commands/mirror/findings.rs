//! Findings of `understudy mirror check`, for people.

use mirror::driver::{Checked, Level};

/// The findings, by what they mean, and the sum of them.
pub(super) fn findings(checked: &Checked) -> String {
    let mut out = String::new();
    for finding in &checked.findings {
        let level = match finding.level {
            Level::Refused => "refused",
            Level::Differs => "differs",
            Level::Advice => "advice",
        };
        out.push_str(&format!(
            "{level} ({}): {}: {}\n  {}\n",
            finding.member,
            finding.what,
            finding.names.join(", "),
            finding.advice
        ));
    }
    out.push_str(match checked.ok {
        true => "a mirror can begin\n",
        false => "a mirror should not begin before this is mended\n",
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirror::driver::Finding;

    #[test]
    fn findings_say_whose_they_are_and_what_to_do() {
        let finding = Finding {
            level: Level::Refused,
            member: "other_member".to_owned(),
            what: "wal_level is not logical".to_owned(),
            names: vec!["replica".to_owned()],
            advice: "Set it.".to_owned(),
        };
        let checked = Checked {
            ok: false,
            findings: vec![finding],
        };
        let wanted = "refused (other_member): wal_level is not logical: replica\n  Set it.\n";
        assert!(findings(&checked).starts_with(wanted));
        assert_eq!(
            findings(&Checked {
                ok: true,
                findings: Vec::new()
            }),
            "a mirror can begin\n"
        );
    }
}
