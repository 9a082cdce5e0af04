//! Versions of the libraries that decide how texts sort and when a time zone changes its offset.
//!
//! All nodes read the same index blocks, so an active with another collation order would search, and write, indexes that are
//! sorted otherwise. The volume therefore has the versions with which its indexes were built, and each node has its own.

use serde::{Deserialize, Serialize};

/// Versions of one host's libraries, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Libraries {
    /// The GNU C library, such as `2.36`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glibc: Option<String>,
    /// ICU, such as `72.1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icu: Option<String>,
    /// The time zone database, such as `2025b`. It does not order texts, so a difference is no reason not to take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tzdata: Option<String>,
}

impl Libraries {
    /// Differences in the order of texts from the libraries of a volume's indexes; none where a version is not known.
    pub fn collation_difference(&self, volume: &Libraries) -> Option<String> {
        let pairs = [
            ("glibc", &self.glibc, &volume.glibc),
            ("ICU", &self.icu, &volume.icu),
        ];
        differences(&pairs)
    }

    /// Difference of the time zone database.
    pub fn time_zone_difference(&self, volume: &Libraries) -> Option<String> {
        differences(&[("tzdata", &self.tzdata, &volume.tzdata)])
    }
}

fn differences(pairs: &[(&str, &Option<String>, &Option<String>)]) -> Option<String> {
    let differing = pairs.iter().filter_map(|(name, here, volume)| {
        let (here, volume) = (here.as_ref()?, volume.as_ref()?);
        (here != volume).then(|| format!("{name} {here} in place of {volume}"))
    });
    let said: Vec<String> = differing.collect();
    (!said.is_empty()).then(|| said.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries(glibc: &str, icu: &str, tzdata: &str) -> Libraries {
        let known = |version: &str| (!version.is_empty()).then(|| version.to_owned());
        Libraries {
            glibc: known(glibc),
            icu: known(icu),
            tzdata: known(tzdata),
        }
    }

    #[test]
    fn a_difference_names_both_versions_and_only_what_is_known() {
        let volume = libraries("2.36", "72.1", "2025a");
        for (own, expected) in [
            (libraries("2.36", "72.1", "2025b"), None),
            (libraries("2.36", "", ""), None),
            (
                libraries("2.41", "76.1", ""),
                Some("glibc 2.41 in place of 2.36 and ICU 76.1 in place of 72.1"),
            ),
        ] {
            assert_eq!(own.collation_difference(&volume).as_deref(), expected);
        }
        let other = libraries("2.36", "72.1", "2025b");
        assert_eq!(
            other.time_zone_difference(&volume).as_deref(),
            Some("tzdata 2025b in place of 2025a")
        );
    }
}
