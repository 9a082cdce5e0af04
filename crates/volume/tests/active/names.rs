//! Names, private routing, links, and what POSIX demands of them.

use std::sync::Arc;
use std::time::Duration;

use volume::error::Error;
use volume::view::{AttrChange, Fallocate, Ino, NewInode, RenameMode, Timestamp, View};

use crate::common::{BLOCK, OWNER, Volume};

const NOW: Timestamp = Timestamp(9);

/// The agent writes the trigger of a promotion into the private tree. The kernel had kept for ten seconds that there is
/// none, because PostgreSQL had looked just before.
// hazard: PAGE-14
#[tokio::test]
async fn nothing_private_is_kept_by_the_kernel() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    life.create("base", NewInode::Directory);
    let private = life.create("base/1.private", NewInode::File);
    let shared = life.create("base/1", NewInode::File);
    let base = life.view.lookup(Ino::ROOT, b"base").unwrap();
    let kept = life.view.cache_policy().metadata;
    assert!(kept > Duration::ZERO);
    assert_eq!(life.view.keep(&private), Duration::ZERO);
    assert_eq!(
        life.view.keep_missing(base.ino, b"2.private"),
        Duration::ZERO
    );
    assert_eq!(life.view.keep_missing(private.ino, b"any"), Duration::ZERO);
    assert_eq!(life.view.keep(&shared), kept);
    assert_eq!(life.view.keep_missing(base.ino, b"2"), kept);
}

#[tokio::test]
async fn private_names_live_on_local_disk_beside_shared_ones() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let dir = life.create("base", NewInode::Directory);
    let shared = life.create("base/1", NewInode::File);
    let private = life.create("base/1.private", NewInode::File);
    assert_eq!(private.ino.0 >> 63, 1);
    life.write(private.ino, 10, *b"x").await;
    assert_eq!(life.contents(private.ino).await, b"\0\0\0\0\0\0\0\0\0\0x");
    assert!(life.view.namespace().resolve("base/1.private").is_err());
    let names: Vec<Vec<u8>> = life
        .view
        .read_dir(dir.ino)
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, [b"1".to_vec(), b"1.private".to_vec()]);
    assert_eq!(life.view.parent(private.ino).unwrap(), dir.ino);

    let rename = life.view.rename(
        (dir.ino, b"1"),
        (dir.ino, b"2.private"),
        RenameMode::Replace,
        NOW,
    );
    assert!(matches!(rename, Err(Error::CrossDevice)));
    let link = life.view.link(shared.ino, dir.ino, b"2.private", NOW);
    assert!(matches!(link, Err(Error::CrossDevice)));

    // A private file keeps a shared directory from being removed, as any file does.
    life.view.unlink(dir.ino, b"1", NOW).unwrap();
    let rmdir = life.view.rmdir(Ino::ROOT, b"base", NOW);
    assert!(matches!(rmdir, Err(Error::NotEmpty)));
    life.view
        .rename(
            (dir.ino, b"1.private"),
            (dir.ino, b"3.private"),
            RenameMode::Replace,
            NOW,
        )
        .unwrap();
    assert_eq!(
        life.view.lookup(dir.ino, b"3.private").unwrap().ino,
        private.ino
    );
    life.view.unlink(dir.ino, b"3.private", NOW).unwrap();
    life.view.rmdir(Ino::ROOT, b"base", NOW).unwrap();
    assert!(life.find("base").is_none());
}

#[tokio::test]
async fn an_unlinked_file_lives_while_it_is_open_and_no_longer() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    for path in ["f", "f.private"] {
        let ino = life.create(path, NewInode::File).ino;
        life.view.open(ino).unwrap();
        life.write(ino, 0, *b"abc").await;
        life.view.unlink(Ino::ROOT, path.as_bytes(), NOW).unwrap();
        assert!(life.find(path).is_none());
        life.write(ino, 3, *b"def").await;
        assert_eq!(life.contents(ino).await, b"abcdef", "{path}");
        assert_eq!(life.view.attr(ino).unwrap().nlink, 0);
        life.view.release(ino);
        assert!(
            matches!(life.view.attr(ino), Err(Error::NotFound)),
            "{path}"
        );
    }
    assert_eq!(life.view.namespace().len(), 1);
}

#[tokio::test]
async fn orphans_of_a_dead_epoch_are_forgotten_when_the_next_one_opens() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    life.view.open(ino).unwrap();
    life.view.unlink(Ino::ROOT, b"f", NOW).unwrap();
    life.view.sync_all().await.unwrap();
    assert_eq!(life.view.namespace().orphans().count(), 1);
    let next = volume.open().await;
    assert_eq!(next.view.namespace().orphans().count(), 0);
    assert_eq!(next.view.namespace().removed().count(), 1);
}

#[tokio::test]
async fn hard_links_share_contents_and_the_class_rule() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let wal = life.create("wal", NewInode::Directory).ino;
    let temp = life.create("wal/temp", NewInode::File).ino;
    life.write(temp, 0, vec![7; 100]).await;
    // As PostgreSQL before 16 installs a segment.
    assert_eq!(life.view.link(temp, wal, b"5", NOW).unwrap().nlink, 2);
    life.view.unlink(wal, b"temp", NOW).unwrap();
    assert_eq!(
        life.contents(life.find("wal/5").unwrap().ino).await,
        vec![7; 100]
    );
    let out = life
        .view
        .rename((wal, b"5"), (Ino::ROOT, b"data"), RenameMode::Replace, NOW);
    assert!(
        matches!(out, Err(Error::CrossDevice)),
        "single blocks cannot become versioned ones"
    );
    life.create("wal/empty", NewInode::File);
    life.view
        .rename(
            (wal, b"empty"),
            (Ino::ROOT, b"data"),
            RenameMode::Replace,
            NOW,
        )
        .unwrap();
}

// hazard: H11
#[tokio::test]
async fn symbolic_links_stay_inside_the_volume() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let dir = life.create("d", NewInode::Directory).ino;
    let link = |target: &str| {
        let new = NewInode::Symlink(target.as_bytes().to_vec());
        life.view.create(dir, b"l", new, OWNER, NOW)
    };
    for target in ["/etc/passwd", "../../x", "../d/../../x"] {
        assert!(
            matches!(link(target), Err(Error::NotPermitted(_))),
            "{target}"
        );
    }
    let made = link("../d/x").unwrap();
    assert_eq!(life.view.read_link(made.ino).unwrap(), b"../d/x");
}

#[tokio::test]
async fn sizes_sparse_files_and_zeroed_ranges() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let ino = life.create("f", NewInode::File).ino;
    let size = |size| AttrChange {
        size: Some(size),
        ..AttrChange::default()
    };
    life.write(ino, 3 * BLOCK as u64, *b"end").await;
    let mut expected = vec![0; 3 * BLOCK];
    expected.extend_from_slice(b"end");
    assert_eq!(life.contents(ino).await, expected);

    life.write(ino, 0, vec![1; 2 * BLOCK]).await;
    life.view.set_attr(ino, size(100), NOW).await.unwrap();
    assert_eq!(life.contents(ino).await, vec![1; 100]);
    life.view
        .set_attr(ino, size(2 * BLOCK as u64), NOW)
        .await
        .unwrap();
    let mut expected = vec![1; 100];
    expected.resize(2 * BLOCK, 0);
    assert_eq!(life.contents(ino).await, expected);

    life.view
        .fallocate(ino, 0..10_000, Fallocate::Extend, NOW)
        .await
        .unwrap();
    life.view
        .fallocate(ino, 50..60, Fallocate::Zero { keep_size: true }, NOW)
        .await
        .unwrap();
    expected.resize(10_000, 0);
    expected[50..60].fill(0);
    assert_eq!(life.contents(ino).await, expected);
    life.view
        .fallocate(
            ino,
            9_990..10_020,
            Fallocate::Zero { keep_size: false },
            NOW,
        )
        .await
        .unwrap();
    assert_eq!(life.view.attr(ino).unwrap().size, 10_020);
    life.view
        .fallocate(ino, 0..90_000, Fallocate::KeepSize, NOW)
        .await
        .unwrap();
    assert_eq!(life.view.attr(ino).unwrap().size, 10_020);
    let huge = life.view.set_attr(ino, size(u64::MAX), NOW).await;
    assert!(matches!(huge, Err(Error::TooLarge)));
}

#[tokio::test]
async fn a_large_directory_lists_every_name_once() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    let dir = life.create("d", NewInode::Directory).ino;
    for i in 0..3000 {
        let name = format!("{i}");
        life.view
            .create(dir, name.as_bytes(), NewInode::File, OWNER, NOW)
            .unwrap();
    }
    assert_eq!(life.view.read_dir(dir).unwrap().len(), 3000);
    let namespace = life.view.namespace();
    let dir = namespace.resolve("d").unwrap();
    assert_eq!(
        namespace.names_with_prefix(dir, b"29").count(),
        1 + 10 + 100
    );
}

#[tokio::test]
async fn a_fenced_view_says_so_whatever_is_asked_of_it() {
    let volume = Volume::format().await;
    let old = volume.open().await;
    let ino = old.create("f", NewInode::File).ino;
    let next = volume.open().await;
    let fenced = [
        old.view.write(ino, 0, vec![1].into(), NOW).await.err(),
        old.view.fsync(ino).await.err(),
        old.view
            .create(Ino::ROOT, b"g", NewInode::File, OWNER, NOW)
            .err(),
        old.view.unlink(Ino::ROOT, b"f", NOW).err(),
        old.view
            .rename(
                (Ino::ROOT, b"f"),
                (Ino::ROOT, b"g"),
                RenameMode::Replace,
                NOW,
            )
            .err(),
        old.view.sync_all().await.err(),
        old.view.cut().await.err(),
    ];
    for (what, error) in fenced.into_iter().enumerate() {
        assert!(error.is_some_and(|e| e.is_fenced()), "operation {what}");
    }
    assert!(next.find("f").is_none(), "what was not synced is not there");
    let _ = Arc::new(next);
}
