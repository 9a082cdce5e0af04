//! Moves of the base, rule by rule, on the pure core.

use std::collections::HashSet;
use std::sync::Arc;

use dax::ids::{BlockIndex, BlockKey, FileId, Version};

use super::overlay::{Content, is_created};
use super::rebase::Move;
use super::state::{BlockSource, State};
use super::testing::*;
use crate::lsn::Lsn;
use crate::namespace::Cut;
use crate::namespace::op::Op;
use crate::seal::Base;
use crate::view::{Ino, NewInode, RenameMode};

const SIZE: u64 = BLOCK as u64;

/// Moves with these blocks missing from the new base and these inodes open.
fn moved(state: &State, base: Base, missing: &[BlockKey], open: &[Ino]) -> State {
    let missing: HashSet<BlockKey> = missing.iter().copied().collect();
    state.rebase(&Move {
        hidden: hidden_of(&base),
        base: Arc::new(base),
        has_version: &|key| !missing.contains(&key),
        is_open: &|ino| open.contains(&ino),
    })
}

fn write(state: &mut State, ino: Ino, block: u64) {
    let end = (block + 1) * SIZE;
    state
        .put_blocks(ino, [(block, Content::Zeros)], end, NOW)
        .unwrap();
}

/// The file whose stored block shows, if no private one does.
fn stored(state: &State, ino: Ino, block: u64) -> Option<FileId> {
    match state.block(ino, block) {
        BlockSource::Base { key, .. } => Some(key.file),
        _ => None,
    }
}

fn at(state: &mut State, lsn: u64) {
    let live = state.live.clone();
    state.show_log(live, Lsn(lsn));
}

fn truncate(active: &mut Builder, id: FileId, blocks: u64) {
    let cut = Cut {
        first_block: BlockIndex(blocks),
        version: Version::ZERO,
    };
    let size = blocks * SIZE;
    active.apply(Op::Truncate {
        id,
        size,
        cut,
        at: NOW,
    });
}

// Rule 3, H1, H2: the redo pointer decides, and the stamp is the replay limit of the moment.
// hazard: H1, H2
#[test]
fn blocks_go_by_their_stamp_and_the_redo_pointer_alone() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 4);
    let ino = Ino(id.0);
    let mut state = attached(active.seal(1, 100, 200));
    for (block, lsn) in [(0, 300), (1, 500), (2, 501), (3, 700)] {
        at(&mut state, lsn);
        write(&mut state, ino, block);
    }
    let state = moved(&state, active.seal(2, 500, 700), &[], &[]);
    let shows_base = [0, 1, 2, 3].map(|b| stored(&state, ino, b).is_some());
    assert_eq!(shows_base, [true, true, false, false]);
}

// hazard: N2
#[test]
fn a_block_that_the_new_base_lacks_stays() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 2);
    let ino = Ino(id.0);
    let mut state = attached(active.seal(1, 100, 200));
    write(&mut state, ino, 0);
    write(&mut state, ino, 1);
    let state = moved(
        &state,
        active.seal(2, 500, 700),
        &[BlockKey::new(id, 1)],
        &[],
    );
    assert!(stored(&state, ino, 0).is_some());
    assert!(stored(&state, ino, 1).is_none());
    assert_eq!(state.item(ino).unwrap().blocks.len(), 1);
}

// Rule 4
#[test]
fn a_created_file_adopts_the_shared_one_when_its_stamp_allows_and_keeps_its_number() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 600);
    let ino = state.make("base/5/2000", NewInode::File);
    write(&mut state, ino, 0);
    at(&mut state, 650);
    write(&mut state, ino, 1);
    let shared = active.file("base/5/2000", 3);

    // The base has the name, but redo behind it makes the file again.
    let state = moved(&state, active.seal(2, 500, 640), &[], &[]);
    assert_eq!(state.at("base/5/2000"), Some(ino));
    assert_eq!(state.size(ino).unwrap(), 2 * SIZE);
    assert!([0, 1, 2].iter().all(|b| stored(&state, ino, *b).is_none()));

    let state = moved(&state, active.seal(3, 620, 700), &[], &[]);
    assert_eq!(
        state.at("base/5/2000"),
        Some(ino),
        "open handles do not notice"
    );
    assert_eq!(state.names("base/5"), ["2000"]);
    assert_eq!(stored(&state, ino, 0), Some(shared));
    assert_eq!(stored(&state, ino, 1), None, "newer than the redo pointer");
    assert_eq!(state.attr(ino).unwrap().nlink, 1);
    assert_eq!(state.path(ino).unwrap(), "base/5/2000");

    let mut state = moved(&state, active.seal(4, 700, 700), &[], &[]);
    assert_eq!(stored(&state, ino, 1), Some(shared));
    assert_eq!(state.size(ino).unwrap(), 3 * SIZE);
    state.drop_file("base/5/2000");
    assert!(state.names("base/5").is_empty());
    active.remove("base/5/2000", false);
    let state = moved(&state, active.seal(5, 900, 900), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// N8: the active has logged the removal and not done it yet.
// hazard: N8
#[test]
fn a_removed_file_does_not_come_back_while_a_base_still_has_it() {
    let mut active = Builder::new();
    active.file("base/5/1000", 2);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.drop_file("base/5/1000");
    // Redo may even have made and removed it itself.
    state.make("base/5/2000", NewInode::File);
    state.drop_file("base/5/2000");
    active.file("base/5/2000", 1);

    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert!(state.names("base/5").is_empty());
    let state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert!(state.names("base/5").is_empty());
    active.remove("base/5/1000", false);
    active.remove("base/5/2000", false);
    let state = moved(&state, active.seal(4, 700, 700), &[], &[]);
    assert_eq!(state.overlay.items(), 0, "nothing is left to hide");
    // What has the name later is another file.
    active.file("base/5/1000", 1);
    let state = moved(&state, active.seal(5, 800, 800), &[], &[]);
    assert_eq!(state.names("base/5"), ["1000"]);
}

// N8: dropdb removes the files first and logs after.
// hazard: N8
#[test]
fn names_that_vanish_before_their_record_are_kept_until_redo_removes_them() {
    let mut active = Builder::new();
    active.make_dir("base/6");
    let file = active.file("base/6/1000", 2);
    let stub = active.file("base/5/1001", 0);
    let first = active.seal(1, 100, 200);
    let mut state = attached(first);
    at(&mut state, 300);
    write(&mut state, Ino(file.0), 1);
    active.remove("base/6/1000", false);
    active.remove_dir("base/6");
    active.remove("base/5/1001", false);

    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert!(state.names("base").contains(&"6".into()));
    assert_eq!(state.names("base/6"), ["1000"]);
    assert!(
        state.names("base/5").is_empty(),
        "the stub {stub} may go at once"
    );
    let ino = state.at("base/6/1000").unwrap();
    assert_eq!(ino, Ino(file.0));
    assert_eq!(stored(&state, ino, 0), Some(file));
    assert_eq!(stored(&state, ino, 1), None, "with its private blocks");
    match state.block(ino, 0) {
        BlockSource::Base { base, .. } => assert_eq!(base.seal.redo, Lsn(100), "as it was"),
        _ => panic!("kept files read from their own base"),
    }
    // Another move changes nothing; redo's own removal does.
    let mut state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.names("base/6"), ["1000"]);
    assert_eq!(stored(&state, ino, 0), Some(file));
    at(&mut state, 650);
    state.drop_file("base/6/1000");
    let base = state.at("base").unwrap();
    let lost = state.rmdir((base, b"6"), NOW).unwrap();
    state.reap(lost);
    assert_eq!(state.names("base"), ["5"]);
    let state = moved(&state, active.seal(4, 700, 700), &[], &[]);
    assert_eq!(state.names("base"), ["5"]);
    assert!(state.kept.is_empty());
    assert_eq!(state.overlay.items(), 0);
}

#[test]
fn a_file_that_redo_made_over_another_and_removed_does_not_come_back() {
    let mut active = Builder::new();
    active.file("base/5/map", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    at(&mut state, 300);
    state.make("base/5/map.tmp", NewInode::File);
    state
        .rename((dir, b"map.tmp"), (dir, b"map"), RenameMode::Replace, NOW)
        .unwrap();
    state.drop_file("base/5/map");
    active.remove("base/5/map", false);
    active.file("base/5/map", 2);
    for number in [2, 3] {
        state = moved(&state, active.seal(number, 500, 500), &[], &[]);
        assert!(state.names("base/5").is_empty());
    }
}

#[test]
fn files_removed_by_redo_from_a_kept_directory_stay_removed() {
    let mut active = Builder::new();
    active.make_dir("base/6");
    active.file("base/6/1000", 2);
    active.file("base/6/1001", 2);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.drop_file("base/6/1000");
    active.remove("base/6/1000", false);
    active.remove("base/6/1001", false);
    active.remove_dir("base/6");
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert_eq!(state.names("base/6"), ["1001"]);
    let mut state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.names("base/6"), ["1001"]);
    state.drop_file("base/6/1001");
    let base = state.at("base").unwrap();
    assert!(state.rmdir((base, b"6"), NOW).is_ok());
}

// N8: a cut of a file that waits for its unlinking, and one of a file that lives on.
#[test]
fn a_cut_is_dropped_when_the_file_lives_on_and_kept_when_it_waits_for_its_removal() {
    let mut active = Builder::new();
    let dropped = active.file("base/5/1000", 4);
    let vacuumed = active.file("base/5/1001", 4);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.truncate(Ino(dropped.0), 0, None, NOW).unwrap();
    state.truncate(Ino(vacuumed.0), SIZE, None, NOW).unwrap();
    write(&mut state, Ino(vacuumed.0), 1);
    // The active truncated the one and let it grow again; it sleeps before it removes the other.
    truncate(&mut active, vacuumed, 1);
    active.apply(Op::SetSize {
        id: vacuumed,
        size: 3 * SIZE,
        at: NOW,
    });

    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    let (dropped_ino, vacuumed_ino) = (Ino(dropped.0), Ino(vacuumed.0));
    assert_eq!(state.size(dropped_ino).unwrap(), 0);
    assert_eq!(stored(&state, dropped_ino, 0), None);
    assert_eq!(state.size(vacuumed_ino).unwrap(), 3 * SIZE);
    assert!((0..3).all(|b| stored(&state, vacuumed_ino, b).is_some()));
    active.remove("base/5/1000", false);
    let mut state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(
        state.size(dropped_ino).unwrap(),
        0,
        "redo unlinks it at its restartpoint"
    );
    at(&mut state, 650);
    state.drop_file("base/5/1000");
    let state = moved(&state, active.seal(4, 700, 700), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// The same for a file that redo made itself: log is handed over in large pieces, so the creation and
// the removal may well have the same stamp. The active's pages must not fill the stub again.
#[test]
fn a_file_that_redo_made_and_removed_under_one_stamp_stays_empty() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    let ino = state.make("base/5/1000", NewInode::File);
    write(&mut state, ino, 0);
    write(&mut state, ino, 1);
    state.truncate(ino, 0, None, NOW).unwrap();
    let shared = active.file("base/5/1000", 2);
    let mut state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert_eq!(state.directory_id(ino), Some(shared), "adopted");
    assert_eq!(state.size(ino).unwrap(), 0);
    assert_eq!(stored(&state, ino, 0), None);
    state.drop_file("base/5/1000");
    active.remove("base/5/1000", false);
    let state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// The base has the empty stub of a removed relation, whose removal redo does not see, and the number
// comes again: redo takes the stub for the new relation's file, the active has made another one.
// hazard: N8
#[test]
fn changes_by_redo_to_a_stub_stay_when_the_next_base_has_another_file_there() {
    let mut active = Builder::new();
    let stub = active.file("base/5/1000", 0);
    let idle = active.file("base/5/1001", 0);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    let ino = state.at("base/5/1000").unwrap();
    assert_eq!(ino, Ino(stub.0));
    write(&mut state, ino, 0);
    at(&mut state, 600);
    write(&mut state, ino, 1);
    for path in ["base/5/1000", "base/5/1001"] {
        active.remove(path, false);
    }
    active.file("base/5/1000", 2);
    let other = active.file("base/5/1001", 2);
    assert_ne!(other, idle);
    let mut state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert_eq!(state.at("base/5/1000"), Some(ino), "redo changed it");
    assert_eq!(state.item(ino).unwrap().blocks.len(), 2, "all of it");
    assert_eq!(state.at("base/5/1001"), Some(Ino(other.0)), "redo did not");
    state.drop_file("base/5/1000");
    active.remove("base/5/1000", false);
    let state = moved(&state, active.seal(3, 700, 700), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// H10: until redo truncates, the file is as long as it was.
// hazard: H10
#[test]
fn a_tail_that_redo_has_not_cut_stays() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 4);
    let state = attached(active.seal(1, 100, 200));
    truncate(&mut active, id, 1);
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    let ino = Ino(id.0);
    assert_eq!(state.size(ino).unwrap(), 4 * SIZE);
    assert_eq!(stored(&state, ino, 3), Some(id));
    let mut state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.size(ino).unwrap(), 4 * SIZE);
    at(&mut state, 650);
    state.truncate(ino, SIZE, None, NOW).unwrap();
    let state = moved(&state, active.seal(4, 700, 700), &[], &[]);
    assert_eq!(state.size(ino).unwrap(), SIZE);
    assert!(state.kept.is_empty());
}

// N8: a transaction made a file and is rolled back, which cuts the file before its last log is synced. Redo
// made the file as well, or made it longer, and has still to apply that log.
// hazard: PAGE-6
#[test]
fn a_tail_stays_also_if_redo_made_the_file_or_made_it_longer() {
    let mut active = Builder::new();
    let grown = active.file("base/5/1000", 2);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    let made = state.make("base/5/2000", NewInode::File);
    write(&mut state, made, 0);
    write(&mut state, made, 1);
    let shared = active.file("base/5/2000", 2);
    let mut state = moved(&state, active.seal(2, 400, 500), &[], &[]);
    assert_eq!(stored(&state, made, 1), Some(shared), "adopted");
    at(&mut state, 600);
    write(&mut state, Ino(grown.0), 2);

    for id in [shared, grown] {
        truncate(&mut active, id, 0);
    }
    let mut state = moved(&state, active.seal(3, 600, 700), &[], &[]);
    for (ino, id, blocks) in [(made, shared, 2), (Ino(grown.0), grown, 3)] {
        assert_eq!(state.size(ino).unwrap(), blocks * SIZE);
        assert_eq!(stored(&state, ino, 0), Some(id));
        assert_eq!(stored(&state, ino, 1), Some(id));
    }

    at(&mut state, 800);
    for ino in [made, Ino(grown.0)] {
        state.truncate(ino, 0, None, NOW).unwrap();
    }
    let state = moved(&state, active.seal(4, 900, 900), &[], &[]);
    assert!(state.kept.is_empty());
    for ino in [made, Ino(grown.0)] {
        assert_eq!(state.size(ino).unwrap(), 0);
    }
}

// N9: copydir of a FILE_COPY record meets the names that a late move brings in.
// hazard: N9
#[test]
fn a_directory_of_redo_stays_opaque_until_its_stamp_allows() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 600);
    let dir = state.make("base/6", NewInode::Directory);
    state.make("base/6/1000", NewInode::File);
    let shared_dir = active.make_dir("base/6");
    active.file("base/6/1000", 1);
    active.file("base/6/1001", 1);

    let mut state = moved(&state, active.seal(2, 500, 550), &[], &[]);
    assert_eq!(state.names("base/6"), ["1000"]);
    // O_EXCL does not fail.
    let late = state.make("base/6/1001", NewInode::File);
    assert!(stored(&state, late, 0).is_none());

    active.file("base/6/1002", 1);
    let state = moved(&state, active.seal(3, 700, 700), &[], &[]);
    assert_eq!(state.at("base/6"), Some(dir));
    assert_eq!(state.directory_id(dir), Some(shared_dir));
    assert_eq!(state.names("base/6"), ["1000", "1001", "1002"]);
    assert_eq!(state.at("base/6/1001"), Some(late));
}

// Rule 7 when the init fork goes first.
#[test]
fn a_fork_that_was_hidden_stays_hidden() {
    let mut active = Builder::new();
    active.file("base/5/1000", 3);
    active.file("base/5/1000_init", 1);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.drop_file("base/5/1000_init");
    active.remove("base/5/1000_init", false);
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert!(state.names("base/5").is_empty());
    active.remove("base/5/1000", false);
    let state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// Rule 7 when the cut fell between the files of a new unlogged relation: the base has the main fork
// alone, redo makes the init fork and removes it with its database. The main fork must not come to
// light then: redo's `rmtree` would find the directory not empty, and a takeover would keep the file.
#[test]
fn a_fork_that_redos_own_init_fork_hid_stays_hidden_when_that_is_removed() {
    let mut active = Builder::new();
    active.make_dir("base/6");
    active.file("base/6/1000", 3);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.make("base/6/1000_init", NewInode::File);
    assert_eq!(state.names("base/6"), ["1000_init"]);
    state.drop_file("base/6/1000_init");
    assert!(state.names("base/6").is_empty());
    let base = state.at("base").unwrap();
    state.rmdir((base, b"6"), NOW).unwrap();
    active.remove("base/6/1000", false);
    active.remove_dir("base/6");
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// Rule 7 when the init fork goes first, and the base that redo stood on never had it: redo makes it and removes it, as
// the log says; the next base has the main fork alone, which the active removes after its next checkpoint. It would come
// to light with the whiteout of the init fork gone, be copied with its database, and stop the redo of a takeover.
// hazard: PAGE-1
#[test]
fn a_fork_that_redos_own_init_fork_hid_stays_hidden_when_a_base_brings_it() {
    let mut active = Builder::new();
    active.make_dir("base/6");
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.make("base/6/1000_init", NewInode::File);
    state.drop_file("base/6/1000_init");
    active.file("base/6/1000", 0);
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert!(state.names("base/6").is_empty());
    active.remove("base/6/1000", false);
    let state = moved(&state, active.seal(3, 600, 600), &[], &[]);
    assert_eq!(state.overlay.items(), 0);
}

// The number is given again, to a logged relation that redo has made; of its visibility map redo has not come to know yet.
#[test]
fn a_removed_init_fork_hides_nothing_of_the_next_relation_of_its_number() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.make("base/5/1000_init", NewInode::File);
    state.drop_file("base/5/1000_init");
    at(&mut state, 400);
    state.make("base/5/1000", NewInode::File);
    active.file("base/5/1000", 1);
    active.file("base/5/1000_vm", 1);
    let state = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert_eq!(state.names("base/5"), ["1000", "1000_vm"]);
}

// A standby keeps the stub of a removed relation for a while. The next base has an unlogged relation of that number: the
// stub would be where PostgreSQL makes its main fork at promotion.
// hazard: PAGE-3
#[test]
fn a_stub_where_an_unlogged_relation_is_now_is_not_kept() {
    let mut active = Builder::new();
    let stub = active.file("base/5/1000", 1);
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 300);
    state.truncate(Ino(stub.0), 0, None, NOW).unwrap();
    active.remove("base/5/1000", false);
    active.file("base/5/1000", 1);
    active.file("base/5/1000_init", 1);
    let state = moved(&state, active.seal(2, 400, 400), &[], &[]);
    assert_eq!(state.names("base/5"), ["1000_init"]);
}

// A directory that redo made hides the base's of that name until its stamp allows. What is in the hidden one is not shown, so
// a move need not keep it: kept, it came back at a takeover without a name, and with what had been cut from it.
// hazard: PAGE-4
#[test]
fn files_in_a_hidden_directory_are_not_kept() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    at(&mut state, 600);
    state.make("base/6", NewInode::Directory);
    state.make("base/6/1000", NewInode::File);
    active.make_dir("base/6");
    active.file("base/6/1000", 1);
    let mut state = moved(&state, active.seal(2, 500, 550), &[], &[]);
    state.drop_file("base/6/1000");
    active.remove("base/6/1000", true);
    let state = moved(&state, active.seal(3, 590, 600), &[], &[]);
    assert!(state.names("base/6").is_empty());
    assert!(state.kept.is_empty());
    let names = state
        .overlay
        .names
        .values()
        .flat_map(|names| names.values());
    assert!(names.filter_map(|item| item.target).all(is_created));
}

// Rule 4: a file replaced by a rename, as the relation map.
#[test]
fn a_replaced_file_is_never_missing_and_never_the_old_one() {
    let mut active = Builder::new();
    active.file("base/5/map", 1);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    at(&mut state, 600);
    let own = state.make("base/5/map.tmp", NewInode::File);
    write(&mut state, own, 0);
    state
        .rename((dir, b"map.tmp"), (dir, b"map"), RenameMode::Replace, NOW)
        .unwrap();
    // The active has not renamed yet.
    active.file("base/5/map.tmp", 1);
    let state = moved(&state, active.seal(2, 650, 650), &[], &[]);
    assert_eq!(state.names("base/5"), ["map"]);
    assert_eq!(state.at("base/5/map"), Some(own));
    assert!(stored(&state, own, 0).is_none());
    // Now it has.
    active.remove("base/5/map", false);
    let (parent, name) = (
        active.namespace.resolve("base/5").unwrap(),
        b"map.tmp".to_vec(),
    );
    active.apply(Op::Rename {
        from: parent,
        from_name: name,
        to: parent,
        to_name: b"map".to_vec(),
        class: crate::layout::FileClass::Data,
        at: NOW,
    });
    let state = moved(&state, active.seal(3, 700, 700), &[], &[]);
    assert_eq!(state.names("base/5"), ["map"]);
    assert_eq!(state.at("base/5/map"), Some(own));
    assert_eq!(
        stored(&state, own, 0),
        active.namespace.resolve("base/5/map").ok()
    );
}

// N3: whoever holds the old state reads it whole.
// hazard: N3
#[test]
fn a_move_changes_nothing_for_those_who_hold_the_state_before_it() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 1);
    let ino = Ino(id.0);
    let mut state = attached(active.seal(1, 100, 200));
    write(&mut state, ino, 0);
    let after = moved(&state, active.seal(2, 500, 500), &[], &[]);
    assert!(stored(&state, ino, 0).is_none());
    assert_eq!(state.base.seal.redo, Lsn(100));
    assert!(stored(&after, ino, 0).is_some());
}

#[test]
fn an_open_file_without_a_name_reads_on() {
    let mut active = Builder::new();
    let id = active.file("base/5/1000", 1);
    let ino = Ino(id.0);
    let mut state = attached(active.seal(1, 100, 200));
    let dir = state.at("base/5").unwrap();
    state.unlink((dir, b"1000"), NOW).unwrap();
    active.remove("base/5/1000", false);
    let open = moved(&state, active.seal(2, 500, 500), &[], &[ino]);
    assert_eq!(stored(&open, ino, 0), Some(id));
    active.apply(Op::Forget { id });
    let open = moved(&open, active.seal(3, 550, 550), &[], &[ino]);
    assert_eq!(stored(&open, ino, 0), Some(id));
    let closed = moved(&open, active.seal(4, 600, 600), &[], &[]);
    assert!(closed.attr(ino).is_err());
}
