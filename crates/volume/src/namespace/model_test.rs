//! Random operations on the namespace and on a plain model, through plan, encoding, apply and
//! snapshot.

use std::collections::BTreeMap;

use dax::ids::{BlockIndex, FileId, Version};
use proptest::prelude::*;

use super::{Namespace, ROOT};
use crate::layout::FileClass;
use crate::namespace::op::{self, Op};
use crate::snapshot;
use crate::view::{NewInode, Ownership, RenameMode, Timestamp};

const NOW: Timestamp = Timestamp(1);
const OWNER: Ownership = Ownership {
    mode: 0o700,
    uid: 1,
    gid: 1,
};

/// Paths as component lists; directories have no size.
#[derive(Debug, Default)]
struct Model(BTreeMap<String, Option<u64>>);

impl Model {
    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.0.get(path) == Some(&None)
    }

    fn has_below(&self, path: &str) -> bool {
        self.0.keys().any(|p| p.starts_with(&format!("{path}/")))
    }

    fn rename(&mut self, from: &str, to: &str) -> bool {
        let inside = to == from || to.starts_with(&format!("{from}/"));
        let Some(moved) = self.0.get(from).copied() else {
            return false;
        };
        if !self.is_directory(parent(to)) {
            return false;
        }
        if inside {
            return to == from;
        }
        match self.0.get(to) {
            Some(target) if target.is_none() != moved.is_none() => return false,
            Some(None) if self.has_below(to) => return false,
            _ => {}
        }
        let below = format!("{from}/");
        let keys: Vec<String> = self
            .0
            .keys()
            .filter(|p| *p == from || p.starts_with(&below))
            .cloned()
            .collect();
        for key in keys {
            let value = self.0.remove(&key).unwrap();
            self.0.insert(format!("{to}{}", &key[from.len()..]), value);
        }
        true
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn name(path: &str) -> &[u8] {
    path.rsplit_once('/')
        .map_or(path, |(_, name)| name)
        .as_bytes()
}

#[derive(Debug, Clone)]
enum Step {
    File(String),
    Directory(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Resize(String, u64),
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..4).prop_map(|parts| parts.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        path().prop_map(Step::File),
        path().prop_map(Step::Directory),
        path().prop_map(Step::Unlink),
        path().prop_map(Step::Rmdir),
        (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
        (path(), 0u64..50_000).prop_map(|(p, s)| Step::Resize(p, s)),
    ]
}

/// What the model says; `true` if the step is allowed.
fn model_step(model: &mut Model, step: &Step) -> bool {
    match step {
        Step::File(path) | Step::Directory(path) => {
            let allowed = model.is_directory(parent(path)) && !model.0.contains_key(path);
            if allowed {
                let file = matches!(step, Step::File(_));
                model.0.insert(path.clone(), file.then_some(0));
            }
            allowed
        }
        Step::Unlink(path) => {
            let allowed = matches!(model.0.get(path), Some(Some(_)));
            allowed && model.0.remove(path).is_some()
        }
        Step::Rmdir(path) => {
            let allowed = model.0.get(path) == Some(&None) && !model.has_below(path);
            allowed && model.0.remove(path).is_some()
        }
        Step::Rename(from, to) => model.rename(from, to),
        Step::Resize(path, size) => match model.0.get_mut(path) {
            Some(Some(old)) => {
                *old = *size;
                true
            }
            _ => false,
        },
    }
}

/// What the namespace plans; an error if it is not allowed.
fn plan(namespace: &Namespace, step: &Step, id: FileId) -> crate::error::Result<Option<Op>> {
    let dir = |path: &str| namespace.resolve(parent(path));
    let class = FileClass::Data;
    let version = Version {
        seq: id.0,
        ..Version::ZERO
    };
    match step {
        Step::File(p) => namespace
            .plan_create((dir(p)?, name(p)), id, NewInode::File, class, OWNER, NOW)
            .map(Some),
        Step::Directory(p) => namespace
            .plan_create(
                (dir(p)?, name(p)),
                id,
                NewInode::Directory,
                class,
                OWNER,
                NOW,
            )
            .map(Some),
        Step::Unlink(p) => namespace
            .plan_unlink((dir(p)?, name(p)), false, NOW)
            .map(Some),
        Step::Rmdir(p) => namespace.plan_rmdir((dir(p)?, name(p)), NOW).map(Some),
        Step::Rename(a, b) => {
            let (from, to) = ((dir(a)?, name(a)), (dir(b)?, name(b)));
            namespace.plan_rename(from, to, RenameMode::Replace, (class, class), NOW)
        }
        Step::Resize(p, size) => {
            namespace.plan_resize(namespace.resolve(p)?, *size, 4096, version, NOW)
        }
    }
}

fn check_invariants(namespace: &Namespace) {
    let mut links: BTreeMap<FileId, u32> = BTreeMap::new();
    for (dir, names) in namespace.directories() {
        assert!(namespace.get(dir).is_some());
        for id in names.values() {
            let inode = namespace.get(*id).expect("every name leads to an inode");
            *links.entry(*id).or_default() += 1;
            if namespace.directory(*id).is_ok() {
                assert_eq!(inode.parent, dir);
                *links.entry(*id).or_default() += 1;
                *links.entry(dir).or_default() += 1;
            }
        }
    }
    *links.entry(ROOT).or_default() += 2;
    for (id, inode) in namespace.inodes() {
        assert_eq!(
            inode.nlink,
            links.get(&id).copied().unwrap_or(0),
            "links of {id}"
        );
        assert_eq!(namespace.is_orphan(id), inode.nlink == 0);
        if inode.nlink > 0 {
            let path = namespace.path_of(id).expect("it has a home");
            assert_eq!(namespace.resolve(&path).expect("its path leads to it"), id);
        }
        assert!(inode.cuts.is_sorted_by_key(|c| (c.first_block, c.version)));
        assert!(
            inode
                .cuts
                .iter()
                .all(|c| c.first_block <= BlockIndex(inode.size.div_ceil(4096))
                    || c.first_block.0 <= 50_000)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_namespace_is_the_model(steps in prop::collection::vec(step(), 1..80)) {
        let mut model = Model::default();
        let mut namespace = Namespace::new(OWNER, FileClass::Data, NOW);
        let mut replay = namespace.clone();
        for (step, id) in steps.iter().zip(10..) {
            let planned = plan(&namespace, step, FileId(id));
            prop_assert_eq!(planned.is_ok(), model_step(&mut model, step), "{:?}: {:?}", step, planned);
            if let Ok(Some(op)) = planned {
                let before = namespace.clone();
                namespace.apply(&op).expect("what was planned fits");
                for op in op::decode(&op::encode(&[op])).expect("decodes") {
                    replay.apply(&op).expect("replays");
                }
                let changed = namespace.changed_inodes(&before).count();
                prop_assert!(changed <= 5, "an operation changes few inodes");
            }
            check_invariants(&namespace);
        }
        prop_assert_eq!(&replay, &namespace);
        for (path, size) in &model.0 {
            let id = namespace.resolve(path).expect("the model has it");
            if let Some(size) = size {
                prop_assert_eq!(namespace.get(id).expect("resolved").size, *size);
            }
        }
        let names: usize = namespace.directories().map(|(_, names)| names.len()).sum();
        prop_assert_eq!(names, model.0.len());
        let copy = snapshot::decode(&snapshot::encode(&namespace)).expect("whole");
        prop_assert_eq!(copy, namespace);
    }

    #[test]
    fn a_snapshot_cut_short_or_changed_is_refused(cut in 0usize..400, flip in 0usize..400) {
        let mut namespace = Namespace::new(OWNER, FileClass::Data, NOW);
        for i in 0..10u64 {
            let name = format!("n{i}");
            let id = FileId(10 + i);
            let op = namespace.plan_create((ROOT, name.as_bytes()), id, NewInode::File, FileClass::Data, OWNER, NOW);
            namespace.apply(&op.expect("free")).expect("fits");
        }
        let bytes = snapshot::encode(&namespace);
        let cut = 1 + cut % (bytes.len() - 1);
        prop_assert!(snapshot::decode(&bytes[..cut]).is_err());
        let mut changed = bytes.clone();
        let at = flip % bytes.len();
        changed[at] ^= 0x10;
        prop_assert!(snapshot::decode(&changed).is_err());
    }
}
