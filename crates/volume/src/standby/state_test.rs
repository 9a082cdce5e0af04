//! The rules of the view, one by one, on the pure core.

use dax::ids::BlockKey;

use super::overlay::{Content, is_created};
use super::state::{BlockSource, Found, State};
use super::testing::*;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::view::{FileKind, Ino, NewInode, RenameMode};

fn block_of(state: &State, ino: Ino, block: u64) -> Option<BlockKey> {
    match state.block(ino, block) {
        BlockSource::Base { key, .. } | BlockSource::Single { key, .. } => Some(key),
        _ => None,
    }
}

fn is_hole(state: &State, ino: Ino, block: u64) -> bool {
    matches!(state.block(ino, block), BlockSource::Zeros)
}

fn write(state: &mut State, ino: Ino, block: u64) {
    let end = (block + 1) * u64::from(BLOCK);
    state
        .put_blocks(ino, [(block, Content::Zeros)], end, NOW)
        .unwrap();
}

#[test]
fn changes_of_the_active_after_the_seal_are_not_seen_but_log_and_configuration_are() {
    let mut active = Builder::new();
    let old = active.file("base/5/1000", 4);
    let gone = active.file("base/5/1001", 1);
    active.file("a.conf", 1);
    let mut state = attached(active.seal(1, 100, 200));

    active.file("base/5/2000", 1);
    active.remove("base/5/1001", false);
    active.apply(crate::namespace::op::Op::SetSize {
        id: old,
        size: 40 * u64::from(BLOCK),
        at: NOW,
    });
    active.file("b.conf", 1);
    active.file("pg_wal/0", 4);
    state.show_log(active.namespace.clone(), Lsn(300));

    assert_eq!(state.names("base/5"), ["1000", "1001"]);
    assert_eq!(state.attr(Ino(old.0)).unwrap().size, 4 * u64::from(BLOCK));
    assert_eq!(
        block_of(&state, Ino(gone.0), 0),
        Some(BlockKey::new(gone, 0))
    );
    assert!(state.at("b.conf").is_some());
    assert_eq!(state.names("pg_wal"), ["0"]);
}

#[test]
fn changes_are_private_to_the_state_that_made_them() {
    let mut active = Builder::new();
    active.file("base/5/1000", 4);
    let before = attached(active.seal(1, 100, 200));
    let mut after = before.clone();
    let made = after.make("base/5/3000", NewInode::File);
    assert!(is_created(made));
    after.drop_file("base/5/1000");
    assert_eq!(after.names("base/5"), ["3000"]);
    assert_eq!(before.names("base/5"), ["1000"]);
    assert!(matches!(
        after.create(
            (after.at("base/5").unwrap(), b"3000"),
            NewInode::File,
            OWNER,
            NOW
        ),
        Err(Error::Exists)
    ));
}

#[test]
fn every_item_carries_the_replay_limit_that_was_shown() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 4);
    let mut state = attached(active.seal(1, 100, 200));
    let ino = Ino(id.0);
    write(&mut state, ino, 0);
    state.show_log(active.namespace.clone(), Lsn(900));
    state.show_log(active.namespace.clone(), Lsn(800));
    assert_eq!(
        state.replay_limit,
        Lsn(900),
        "the replay limit never goes back"
    );
    write(&mut state, ino, 1);
    let item = state.item(ino).unwrap();
    assert_eq!(
        (item.blocks[&0].stamp, item.blocks[&1].stamp),
        (Lsn(200), Lsn(900))
    );
}

// hazard: H10
#[test]
fn blocks_beyond_an_own_truncation_read_as_zeros_also_when_the_file_grows_again() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 8);
    let mut state = attached(active.seal(1, 100, 200));
    let ino = Ino(id.0);
    write(&mut state, ino, 6);
    state
        .truncate(ino, 2 * u64::from(BLOCK), None, NOW)
        .unwrap();
    assert_eq!(state.size(ino).unwrap(), 2 * u64::from(BLOCK));
    state.extend(ino, 8 * u64::from(BLOCK), NOW).unwrap();
    assert!(block_of(&state, ino, 1).is_some());
    assert!((2..8).all(|b| is_hole(&state, ino, b)));
    assert!(state.item(ino).unwrap().blocks.is_empty());
}

// Rule 7, H6
// hazard: H6, PAGE-2
#[test]
fn forks_of_unlogged_relations_are_invisible_but_their_init_fork() {
    let mut active = Builder::new();
    for name in [
        "16384",
        "16384_init",
        "16384_vm",
        "16384.1",
        "16385",
        "backup",
    ] {
        active.file(&format!("base/5/{name}"), 1);
    }
    active.file("backup_label", 1);
    active.file("base/5/16386", 1);
    let mut state = attached(active.seal(1, 100, 200));
    assert_eq!(
        state.names("base/5"),
        ["16384_init", "16385", "16386", "backup"]
    );
    assert!(state.at("base/5/16384").is_none());
    assert!(state.at("backup_label").is_none());
    // Redo makes the init forks of unlogged relations only: this is another relation of the number, and what the base has
    // is left of one whose creation was lost with the end of a log. PostgreSQL would empty the new one at promotion.
    let made = state.make("base/5/16384", NewInode::File);
    assert!(is_created(made) && is_hole(&state, made, 0));
    assert_eq!(state.at("base/5/16384"), Some(made));
    assert_eq!(state.names("base/5"), ["16384", "16385", "16386", "backup"]);
    // The base may have been cut between the main fork and its init fork.
    state.make("base/5/16386_init", NewInode::File);
    assert!(state.at("base/5/16386").is_none());
}

// Rule 6, H7
#[test]
fn private_names_go_to_the_local_disk_whatever_the_base_has() {
    let mut active = Builder::new();
    active.file("pg_twophase/00000001", 1);
    active.file("global/pg_control", 2);
    let state = attached(active.seal(1, 100, 200));
    assert_eq!(
        state.find(Ino::ROOT, b"pg_twophase").unwrap(),
        Found::Private("pg_twophase".into())
    );
    let global = state.at("global").unwrap();
    assert_eq!(
        state.find(global, b"pg_control").unwrap(),
        Found::Private("global/pg_control".into())
    );
    assert!(state.names("global").is_empty());
    assert!(!state.names("").contains(&"pg_twophase".into()));
}

// Rule 5, H12
// hazard: H12
#[test]
fn the_log_ends_in_zeros_at_the_replay_limit_at_its_full_size() {
    let mut active = Builder::new();
    let segment = active.file("pg_wal/2", 1);
    let mut state = attached(active.seal(1, 100, 2 * SEGMENT + 5000));
    let ino = Ino(segment.0);
    active.apply(crate::namespace::op::Op::SetSize {
        id: segment,
        size: SEGMENT,
        at: NOW,
    });
    state.show_log(active.namespace.clone(), Lsn(0));
    assert_eq!(state.size(ino).unwrap(), SEGMENT);
    let shown = |state: &State, block| match state.block(ino, block) {
        BlockSource::Single { shown, .. } => shown,
        _ => 0,
    };
    assert_eq!([0, 1, 2, 3].map(|b| shown(&state, b)), [4096, 904, 0, 0]);
    state.show_log(active.namespace.clone(), Lsn(3 * SEGMENT));
    assert_eq!([0, 1, 2, 3].map(|b| shown(&state, b)), [4096; 4]);
}

// hazard: H8
#[test]
fn in_the_log_shared_names_and_contents_win_and_own_changes_have_no_effect() {
    let mut active = Builder::new();
    let segment = active.file("pg_wal/1", 4);
    let mut state = attached(active.seal(1, 100, 200));
    let wal = state.at("pg_wal").unwrap();
    let ino = Ino(segment.0);

    assert!(state.is_ignored(ino).unwrap());
    assert_eq!(state.unlink((wal, b"1"), NOW).unwrap(), None);
    assert_eq!(
        state
            .rename((wal, b"1"), (wal, b"9"), RenameMode::Replace, NOW)
            .unwrap(),
        None
    );
    assert_eq!(state.names("pg_wal"), ["1"]);

    // A segment that the walreceiver makes before the live namespace shows it.
    let stub = state.make("pg_wal/xlogtemp.7", NewInode::File);
    state.extend(stub, SEGMENT, NOW).unwrap();
    state
        .rename((wal, b"xlogtemp.7"), (wal, b"2"), RenameMode::Replace, NOW)
        .unwrap();
    assert_eq!(state.names("pg_wal"), ["1", "2"]);
    assert_eq!(state.at("pg_wal/2"), Some(stub));
    assert!(
        state.is_ignored(stub).unwrap(),
        "a segment's contents only come from the log"
    );
    assert!(is_hole(&state, stub, 0));

    let real = active.file("pg_wal/2", 4);
    state.show_log(active.namespace.clone(), Lsn(10 * SEGMENT));
    assert_eq!(state.at("pg_wal/2"), Some(Ino(real.0)));
    assert_eq!(state.names("pg_wal"), ["1", "2"]);
    assert_eq!(
        block_of(&state, stub, 1),
        Some(BlockKey::new(real, 1)),
        "an open stub follows"
    );

    // One that meets a shared file gives way.
    state.make("pg_wal/xlogtemp.8", NewInode::File);
    let lost = state
        .rename((wal, b"xlogtemp.8"), (wal, b"1"), RenameMode::Replace, NOW)
        .unwrap();
    assert!(lost.is_some_and(is_created));
    assert_eq!(state.names("pg_wal"), ["1", "2"]);
}

#[test]
fn removed_segments_stay_in_the_log_while_they_are_retained() {
    let mut active = Builder::new();
    let segment = active.file("pg_wal/1", 4);
    let mut state = attached(active.seal(1, 100, 4 * SEGMENT));
    active.remove("pg_wal/1", true);
    state.show_log(active.namespace.clone(), Lsn(4 * SEGMENT));
    assert_eq!(state.names("pg_wal"), ["1"]);
    assert_eq!(state.at("pg_wal/1"), Some(Ino(segment.0)));
    assert_eq!(
        block_of(&state, Ino(segment.0), 0),
        Some(BlockKey::new(segment, 0))
    );
    active.apply(crate::namespace::op::Op::Forget { id: segment });
    state.show_log(active.namespace.clone(), Lsn(4 * SEGMENT));
    assert!(state.names("pg_wal").is_empty());
}

// N9, H5: what dbase_redo does for FILE_COPY.
#[test]
fn a_directory_that_redo_makes_shows_nothing_of_the_base_below_it() {
    let mut active = Builder::new();
    active.file("base/5/1000", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let base = state.at("base").unwrap();
    assert!(matches!(
        state.rmdir((base, b"5"), NOW),
        Err(Error::NotEmpty)
    ));
    state.drop_file("base/5/1000");
    state.rmdir((base, b"5"), NOW).unwrap();
    assert!(state.at("base/5").is_none());
    let dir = state.make("base/5", NewInode::Directory);
    assert!(state.names("base/5").is_empty());
    state.make("base/5/1000", NewInode::File);
    assert_eq!(state.path(dir).unwrap(), "base/5");
    assert_eq!(state.names("base/5"), ["1000"]);
    assert_eq!(state.parent(dir).unwrap(), base);
}

#[test]
fn renames_follow_posix() {
    let mut active = Builder::new();
    let old = active.file("base/5/map", 1);
    active.file("base/5/other", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    let new = state.make("base/5/map.tmp", NewInode::File);
    let replace = |state: &mut State, from: &[u8], to: &[u8], mode| {
        state.rename((dir, from), (dir, to), mode, NOW)
    };
    assert!(matches!(
        replace(&mut state, b"map.tmp", b"map", RenameMode::NoReplace),
        Err(Error::Exists)
    ));
    let lost = replace(&mut state, b"map.tmp", b"map", RenameMode::Replace).unwrap();
    assert_eq!(lost, Some(Ino(old.0)));
    assert_eq!(state.at("base/5/map"), Some(new));
    assert_eq!(state.names("base/5"), ["map", "other"]);
    let hidden = state.overlay.name(dir, b"map").unwrap().hides;
    assert_eq!(
        hidden,
        Some(old),
        "a later base that still has it must not bring it back (N8)"
    );

    let other = state.at("base/5/other").unwrap();
    replace(&mut state, b"map", b"other", RenameMode::Exchange).unwrap();
    assert_eq!(
        (state.at("base/5/map"), state.at("base/5/other")),
        (Some(other), Some(new))
    );
    assert_eq!(state.path(other).unwrap(), "base/5/map");

    let base = state.at("base").unwrap();
    state
        .rename(
            (base, b"5"),
            (Ino::ROOT, b"moved"),
            RenameMode::Replace,
            NOW,
        )
        .unwrap();
    assert_eq!(state.names("moved"), ["map", "other"]);
    assert_eq!(state.path(other).unwrap(), "moved/map");
    let moved = (Ino::ROOT, &b"moved"[..]);
    assert!(matches!(
        state.rename(moved, (dir, b"inside"), RenameMode::Replace, NOW),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        state.rename(
            moved,
            (Ino::ROOT, b"postmaster.pid"),
            RenameMode::Replace,
            NOW
        ),
        Err(Error::CrossDevice)
    ));
}

#[test]
fn links_count_and_the_last_one_frees() {
    let mut active = Builder::new();
    active.file("base/5/1000", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    let ino = state.make("base/5/a", NewInode::File);
    write(&mut state, ino, 0);
    assert_eq!(state.link(ino, (dir, b"b"), NOW).unwrap().nlink, 2);
    state.drop_file("base/5/a");
    assert_eq!(state.attr(ino).unwrap().nlink, 1);
    state.drop_file("base/5/b");
    assert!(matches!(state.attr(ino), Err(Error::NotFound)));
    assert_eq!(state.names("base/5"), ["1000"]);
}

#[test]
fn an_unlinked_file_reads_on_until_it_is_reaped() {
    let mut active = Builder::new();
    active.file("base/5/1000", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    let ino = state.make("base/5/a", NewInode::File);
    state.extend(ino, 77, NOW).unwrap();
    assert_eq!(state.unlink((dir, b"a"), NOW).unwrap(), Some(ino));
    assert_eq!(state.attr(ino).unwrap().size, 77);
    assert_eq!(state.kind(ino).unwrap(), FileKind::File);
    state.reap(ino);
    assert!(state.attr(ino).is_err());
}

#[test]
fn configuration_can_be_replaced_privately() {
    let mut active = Builder::new();
    let shared = active.file("auto.conf", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let own = state.make("auto.conf.tmp", NewInode::File);
    let (from, to) = (
        (Ino::ROOT, &b"auto.conf.tmp"[..]),
        (Ino::ROOT, &b"auto.conf"[..]),
    );
    state.rename(from, to, RenameMode::Replace, NOW).unwrap();
    assert_eq!(state.at("auto.conf"), Some(own));
    assert_ne!(own, Ino(shared.0));
    assert!(state.shared(own).is_none());
}
