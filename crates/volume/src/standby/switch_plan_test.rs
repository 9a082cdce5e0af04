//! What a takeover writes, on the pure core.

use std::sync::Arc;

use dax::ids::{BlockIndex, Epoch, FileId, Version};

use super::overlay::Content;
use super::rebase::Move;
use super::state::State;
use super::switch_plan::{Switch, SwitchPlan, plan};
use super::testing::*;
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::namespace::op::Op;
use crate::seal::Base;
use crate::view::{Ino, NewInode};

/// The state after a move to a base that has all blocks.
fn moved(state: &State, base: Base) -> State {
    state.rebase(&Move {
        hidden: hidden_of(&base),
        base: Arc::new(base),
        has_version: &|_| true,
        is_open: &|_| false,
    })
}

/// A block that the dead active wrote.
const DEAD: Version = Version {
    epoch: Epoch(1),
    seq: 99,
};

fn switch(state: &State, latest: &Namespace) -> SwitchPlan {
    let switch = Switch {
        state,
        latest,
        published: &[],
        cut: Version {
            epoch: Epoch(2),
            seq: 1,
        },
    };
    plan(&switch, || FileId(9_999)).unwrap()
}

// Two standbys stand on one base. One has made a file itself before its base had it, and takes over
// before it may adopt it; the other changes the base's file, and moves to the first seal of the new
// epoch. What it changed must find its file there.
#[test]
fn a_file_that_could_not_be_adopted_yet_keeps_its_id() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    let live = state.live.clone();
    state.show_log(live, Lsn(600));
    let dir = state.make("base/6", NewInode::Directory);
    let ino = state.make("base/6/1000", NewInode::File);
    state
        .put_blocks(ino, [(0, Content::Zeros)], u64::from(BLOCK), NOW)
        .unwrap();
    let shared_dir = active.make_dir("base/6");
    let shared = active.file("base/6/1000", 3);
    let other = active.file("base/6/1001", 1);
    let state = moved(&state, active.seal(2, 500, 600));
    assert_eq!(state.directory_id(dir), None, "not adopted");

    let made = switch(&state, &active.namespace);
    assert_eq!(made.files[&dir], shared_dir);
    assert_eq!(made.files[&ino], shared);

    let mut namespace: Namespace = active.namespace.clone();
    for op in &made.ops {
        namespace.apply(op).unwrap();
    }
    assert_eq!(namespace.resolve("base/6/1000").ok(), Some(shared));
    assert!(
        namespace.resolve("base/6/1001").is_err(),
        "redo has not made it"
    );
    assert!(namespace.get(other).is_none(), "nothing of it is left");
    assert_eq!(namespace.get(shared_dir).map(|dir| dir.nlink), Some(2));
    let inode = namespace.get(shared).unwrap();
    assert_eq!(inode.size, u64::from(BLOCK));
    assert!(
        inode.is_cut(BlockIndex(0), DEAD),
        "the base's blocks are not"
    );
    assert!(Ino(shared.0) != ino);
}

// `DROP DATABASE` had removed the directory when an image was cut, and the record of it was lost with the log. A standby on
// that image has kept the directory; another node, which took over meanwhile, has put it back and made a file in it. That
// file goes with the next takeover: PostgreSQL, promoted, would stop if it were one that it has to make (the simulation's seed 82219).
// hazard: N6
#[test]
fn names_in_a_directory_that_the_view_has_kept_become_the_views() {
    let mut active = Builder::new();
    active.make_dir("base/6");
    active.file("base/6/1000", 1);
    let state = attached(active.seal(1, 100, 200));
    active.file("base/6/1001", 1);
    let latest = active.namespace.clone();
    for name in ["1000", "1001"] {
        active.remove(&format!("base/6/{name}"), false);
    }
    active.remove_dir("base/6");
    let state = moved(&state, active.seal(2, 500, 600));
    assert_eq!(state.names("base/6"), ["1000"]);
    let mut namespace = latest.clone();
    for op in &switch(&state, &latest).ops {
        namespace.apply(op).unwrap();
    }
    assert!(namespace.resolve("base/6/1000").is_ok());
    assert!(
        namespace.resolve("base/6/1001").is_err(),
        "redo has not made it"
    );
}

// A file that redo made and adopted, and cut since; the next base lacks it, because its removal was under
// way, but the log ends before that. It is the volume's again, and what redo cut stays cut.
#[test]
fn a_kept_file_keeps_its_own_cut() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    let ino = state.make("base/5/2000", NewInode::File);
    let shared = active.file("base/5/2000", 3);
    let mut state = moved(&state, active.seal(2, 500, 600));
    assert_eq!(state.shared(ino).map(|s| s.id), Some(shared), "adopted");
    let live = state.live.clone();
    state.show_log(live, Lsn(700));
    state.truncate(ino, 0, None, NOW).unwrap();
    state.extend(ino, u64::from(BLOCK), NOW).unwrap();
    active.remove("base/5/2000", false);
    active.apply(Op::Forget { id: shared });
    let state = moved(&state, active.seal(3, 650, 700));
    assert_eq!(state.at("base/5/2000"), Some(ino), "kept");

    let made = switch(&state, &active.namespace);
    let mut namespace = active.namespace.clone();
    for op in &made.ops {
        namespace.apply(op).unwrap();
    }
    assert_eq!(namespace.resolve("base/5/2000").ok(), Some(shared));
    let inode = namespace.get(shared).unwrap();
    assert_eq!(inode.size, u64::from(BLOCK));
    assert!(inode.is_cut(BlockIndex(0), DEAD));
}

#[test]
fn of_a_file_that_redo_adopted_and_removed_nothing_is_left() {
    let mut active = Builder::new();
    let mut state = attached(active.seal(1, 100, 200));
    state.make("base/5/2000", NewInode::File);
    let shared = active.file("base/5/2000", 3);
    let base = Arc::new(active.seal(2, 500, 600));
    let mut state = state.rebase(&Move {
        hidden: hidden_of(&base),
        base,
        has_version: &|_| true,
        is_open: &|_| false,
    });
    state.drop_file("base/5/2000");
    let mut namespace = active.namespace.clone();
    for op in &switch(&state, &active.namespace).ops {
        namespace.apply(op).unwrap();
    }
    assert!(namespace.resolve("base/5/2000").is_err());
    assert!(namespace.get(shared).is_none());
}
