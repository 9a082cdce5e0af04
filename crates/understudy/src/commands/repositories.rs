//! Backups in `understudy status`: what those who archive leave in the registry.

use coordination::records::BackupState;
use volume::lsn::Lsn;

use super::notes::ago;
use crate::demo::timeline::thousands;

/// A line for each repository.
pub(super) fn lines(backups: &[BackupState], synced: Option<Lsn>) -> String {
    backups.iter().map(|one| line(one, synced)).collect()
}

fn line(state: &BackupState, synced: Option<Lsn>) -> String {
    let mut said = format!("backup to {} by {}: ", state.repository, state.by);
    said += &match (&state.image, state.image_unix_ms) {
        (Some(image), Some(begun)) => format!("last image {image}, newest{}", ago(begun)),
        _ => "NO IMAGE YET".to_owned(),
    };
    let behind = synced.zip(state.archived);
    if let Some((synced, archived)) = behind {
        let kilobytes = synced.bytes_since(archived).div_ceil(1024);
        said += &format!("; log up to {archived}, {} kB behind", thousands(kilobytes));
    }
    if let Some(trouble) = &state.trouble {
        said += &format!("; FAILS: {trouble}");
    }
    said + "\n"
}

#[cfg(test)]
mod tests {
    use dax::ids::NodeName;

    use super::*;

    #[test]
    fn a_repository_has_a_line() {
        let mut state = BackupState {
            name: NodeName::new("backup-archive").unwrap(),
            by: "north".to_owned(),
            by_active: false,
            beat: 1,
            repository: "/backup".to_owned(),
            image: None,
            image_unix_ms: None,
            archived: Some(Lsn(1000)),
            archived_unix_ms: Some(1),
            drill_unix_ms: None,
            trouble: None,
        };
        let said = lines(std::slice::from_ref(&state), Some(Lsn(3000)));
        let expected = "backup to /backup by north: NO IMAGE YET; log up to 0/3E8, 2 kB behind\n";
        assert_eq!(said, expected);
        state.trouble = Some("the disk is full".to_owned());
        assert!(lines(&[state], None).ends_with("; FAILS: the disk is full\n"));
    }
}
