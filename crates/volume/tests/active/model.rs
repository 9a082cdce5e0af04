//! Random operations on the view and on a model file system side by side; at seals the model is
//! copied, and the image must equal the copy for as long as the seal is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use dax::ids::{BlockIndex, BlockKey};
use dax::storage::Storage;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use volume::image;
use volume::namespace::Namespace;
use volume::seal::{Base, Seal};
use volume::view::{AttrChange, FileKind, Ino, NewInode, RenameMode, Timestamp, View};

use crate::common::{BLOCK, Life, Volume};

/// Paths to contents; hard links share an index into `files`.
#[derive(Clone, Default)]
pub struct Model {
    names: BTreeMap<String, usize>,
    files: BTreeMap<usize, Vec<u8>>,
    next: usize,
}

impl Model {
    fn create(&mut self, path: &str) -> bool {
        if self.names.contains_key(path) {
            return false;
        }
        self.names.insert(path.into(), self.next);
        self.files.insert(self.next, Vec::new());
        self.next += 1;
        true
    }

    fn file(&mut self, path: &str) -> Option<&mut Vec<u8>> {
        self.files.get_mut(self.names.get(path)?)
    }

    fn write(&mut self, path: &str, offset: usize, data: &[u8]) {
        let Some(file) = self.file(path) else { return };
        if file.len() < offset + data.len() {
            file.resize(offset + data.len(), 0);
        }
        file[offset..offset + data.len()].copy_from_slice(data);
    }

    fn rename(&mut self, from: &str, to: &str) {
        if self.names.get(from) != self.names.get(to) {
            let file = self.names.remove(from).unwrap();
            self.names.insert(to.into(), file);
        }
    }

    /// Every path with its contents.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        self.names
            .iter()
            .map(|(path, file)| (path.clone(), self.files[file].clone()))
            .collect()
    }
}

/// One random operation on both.
pub async fn step(life: &Life, model: &mut Model, rng: &mut SmallRng, folders: &[&str]) {
    let mut path = || {
        format!(
            "{}{}",
            folders[rng.random_range(0..folders.len())],
            rng.random_range(0..6)
        )
    };
    let (one, other) = (path(), path());
    let now = Timestamp(7);
    let found = life.find(&one).map(|attr| attr.ino);
    assert_eq!(found.is_some(), model.names.contains_key(&one), "{one}");
    let (parent, name) = life.place(&one);
    let (to_parent, to_name) = life.place(&other);
    let Some(ino) = found else {
        life.create(&one, NewInode::File);
        assert!(model.create(&one));
        return;
    };
    match rng.random_range(0..20) {
        0..=9 => {
            let offset = rng.random_range(0..4 * BLOCK);
            let whole = rng.random_bool(0.5);
            let (offset, len) = match whole {
                true => (offset / BLOCK * BLOCK, BLOCK * rng.random_range(1..3)),
                false => (offset, rng.random_range(1..2 * BLOCK)),
            };
            let data: Vec<u8> = (0..len).map(|_| rng.random_range(1..=255)).collect();
            model.write(&one, offset, &data);
            life.write(ino, offset as u64, data).await;
        }
        10..=12 => {
            let size = rng.random_range(0..5 * BLOCK);
            let size = if rng.random_bool(0.3) {
                size / BLOCK * BLOCK
            } else {
                size
            };
            model.file(&one).unwrap().resize(size, 0);
            let change = AttrChange {
                size: Some(size as u64),
                ..AttrChange::default()
            };
            life.view.set_attr(ino, change, now).await.unwrap();
        }
        13..=14 => {
            life.view.unlink(parent, name.as_bytes(), now).unwrap();
            model.names.remove(&one);
        }
        15..=16 => {
            let from = (parent, name.as_bytes());
            let to = (to_parent, to_name.as_bytes());
            // Files may not change between versioned and single blocks.
            if life.view.rename(from, to, RenameMode::Replace, now).is_ok() {
                model.rename(&one, &other);
            }
        }
        17 => {
            if life
                .view
                .link(ino, to_parent, to_name.as_bytes(), now)
                .is_ok()
            {
                let file = model.names[&one];
                assert!(model.names.insert(other, file).is_none());
            }
        }
        18 => life.view.fsync(ino).await.unwrap(),
        _ => {
            let offset = rng.random_range(0..5 * BLOCK);
            let len = rng.random_range(0..3 * BLOCK);
            let read = life
                .view
                .read(ino, offset as u64, len as u32)
                .await
                .unwrap();
            let file = model.file(&one).unwrap();
            let end = (offset + len).min(file.len());
            assert_eq!(read[..], file[offset.min(end)..end]);
        }
    }
}

/// The view's files below the folders, with contents.
pub async fn shown(life: &Life, folders: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let mut shown = BTreeMap::new();
    for folder in folders {
        let dir = life.find(folder).unwrap().ino;
        for entry in life.view.read_dir(dir).unwrap() {
            if entry.kind == FileKind::File {
                let name = format!("{folder}{}", String::from_utf8(entry.name).unwrap());
                shown.insert(name, life.contents(entry.ino).await);
            }
        }
    }
    shown
}

/// A sealed image's files below the folders, with contents, as a standby reads them.
pub async fn sealed(
    storage: &Arc<dyn Storage>,
    seal: &Seal,
    folders: &[&str],
) -> BTreeMap<String, Vec<u8>> {
    let base = Base::load(storage, seal).await.unwrap();
    let namespace: &Namespace = &base.namespace;
    let mut shown = BTreeMap::new();
    for folder in folders {
        let dir = namespace.resolve(folder).unwrap();
        for (name, file) in namespace.directory(dir).unwrap() {
            let inode = namespace.get(*file).unwrap();
            if inode.kind != FileKind::File {
                continue;
            }
            let mut contents = Vec::new();
            for block in 0..inode.size.div_ceil(BLOCK as u64) {
                let key = BlockKey {
                    file: *file,
                    block: BlockIndex(block),
                };
                let data = image::read_block(storage, &seal.lineage, inode, key)
                    .await
                    .unwrap();
                contents.extend_from_slice(&data.map_or(vec![0; BLOCK], |b| b.data.to_vec()));
            }
            let beyond = contents.split_off(inode.size as usize);
            assert!(
                beyond.iter().all(|b| *b == 0),
                "a boundary block has a zero tail"
            );
            shown.insert(
                format!("{folder}{}", String::from_utf8_lossy(name)),
                contents,
            );
        }
    }
    shown
}

#[tokio::test]
async fn the_view_equals_the_model_and_so_does_each_kept_seal() {
    for seed in 0..12 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let volume = Volume::format().await;
        let mut life = volume.open().await;
        let folders = ["", "d/", "conf/"];
        life.create("d", NewInode::Directory);
        life.create("conf", NewInode::Directory);
        let mut model = Model::default();
        let mut kept: Vec<(Seal, BTreeMap<String, Vec<u8>>)> = Vec::new();
        for round in 0..10 {
            for _ in 0..60 {
                step(&life, &mut model, &mut rng, &folders).await;
            }
            assert_eq!(
                shown(&life, &folders).await,
                model.contents(),
                "seed {seed} round {round}"
            );
            let seal = life.seal(0).await;
            kept.push((seal, model.contents()));
            life.view.reclaim().await.unwrap();
            if round % 4 == 3 {
                // A clean hand-over: nothing after the seal.
                life.view.sync_all().await.unwrap();
                life = volume.open().await;
                assert_eq!(
                    shown(&life, &folders).await,
                    model.contents(),
                    "seed {seed} after reopening"
                );
            }
            for _ in 0..20 {
                step(&life, &mut model, &mut rng, &["", "d/"]).await;
            }
            life.view.reclaim().await.unwrap();
            let reader = volume.reader();
            for (seal, copy) in kept.iter().rev().take(2) {
                // Live files show their latest contents, not the seal's.
                let mut copy = copy.clone();
                copy.retain(|path, _| !path.starts_with("conf/"));
                assert_eq!(
                    sealed(&reader, seal, &["", "d/"]).await,
                    copy,
                    "seed {seed} round {round}"
                );
            }
        }
    }
}

#[tokio::test]
async fn attributes_come_back_after_reopening() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    let change = AttrChange {
        mode: Some(0o640),
        uid: Some(5),
        gid: Some(6),
        mtime: Some(Timestamp(77)),
        size: None,
    };
    life.view
        .set_attr(ino, change, Timestamp(88))
        .await
        .unwrap();
    life.view.fsync(ino).await.unwrap();
    let before = life.view.attr(ino).unwrap();
    let next = volume.open().await;
    assert_eq!(next.view.attr(ino).unwrap(), before);
    assert_eq!(
        (before.mode, before.uid, before.gid, before.mtime),
        (0o640, 5, 6, Timestamp(77))
    );
    assert_eq!(next.view.parent(ino).unwrap(), Ino::ROOT);
}
