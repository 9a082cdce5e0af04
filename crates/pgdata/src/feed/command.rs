//! The commands of replication connections.

use volume::lsn::Lsn;

use crate::parse_lsn;
use crate::timeline::TimelineId;

/// What a standby asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    IdentifySystem,
    TimelineHistory(TimelineId),
    /// Stream from a position on a timeline (the current one if none is named). A slot may be
    /// named; nobody keeps slots here, retention is the volume's.
    Start(Lsn, Option<TimelineId>),
    Show(String),
    Unknown(String),
}

impl Command {
    pub fn parse(text: &str) -> Command {
        Command::known(text).unwrap_or_else(|| Command::Unknown(text.to_owned()))
    }

    fn known(text: &str) -> Option<Command> {
        let mut words = text.trim().trim_end_matches(';').split_whitespace();
        let verb = words.next()?.to_ascii_uppercase();
        let command = match verb.as_str() {
            "IDENTIFY_SYSTEM" => Command::IdentifySystem,
            "TIMELINE_HISTORY" => Command::TimelineHistory(timeline(words.next()?)?),
            "SHOW" => Command::Show(words.next()?.to_owned()),
            "START_REPLICATION" => start(&mut words)?,
            _ => return None,
        };
        words.next().is_none().then_some(command)
    }
}

fn start<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Command> {
    let mut word = words.next()?;
    if word.eq_ignore_ascii_case("SLOT") {
        words.next()?;
        word = words.next()?;
    }
    if word.eq_ignore_ascii_case("PHYSICAL") {
        word = words.next()?;
    }
    let at = parse_lsn(word)?;
    let on = match words.next() {
        None => None,
        Some(word) if word.eq_ignore_ascii_case("TIMELINE") => Some(timeline(words.next()?)?),
        Some(_) => return None,
    };
    Some(Command::Start(at, on))
}

fn timeline(digits: &str) -> Option<TimelineId> {
    digits.parse().ok().map(TimelineId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_walreceivers_are_understood() {
        let start = |timeline| Command::Start(Lsn(0x3000000), timeline);
        for (text, command) in [
            ("IDENTIFY_SYSTEM", Command::IdentifySystem),
            ("identify_system;", Command::IdentifySystem),
            (
                "TIMELINE_HISTORY 7",
                Command::TimelineHistory(TimelineId(7)),
            ),
            (
                "START_REPLICATION 0/3000000 TIMELINE 2",
                start(Some(TimelineId(2))),
            ),
            (
                "START_REPLICATION SLOT \"a\" 0/3000000 TIMELINE 2",
                start(Some(TimelineId(2))),
            ),
            ("START_REPLICATION PHYSICAL 0/3000000", start(None)),
            (
                "SHOW wal_segment_size",
                Command::Show("wal_segment_size".into()),
            ),
        ] {
            assert_eq!(Command::parse(text), command, "{text}");
        }
        for text in [
            "",
            "SELECT 1",
            "TIMELINE_HISTORY x",
            "START_REPLICATION SLOT a LOGICAL 0/0 (x)",
            "START_REPLICATION 0/0 TIMELINE",
            "IDENTIFY_SYSTEM now",
        ] {
            assert_eq!(Command::parse(text), Command::Unknown(text.into()));
        }
    }
}
