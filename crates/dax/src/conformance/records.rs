//! Records.

use bytes::Bytes;

use super::{Volume, owner};
use crate::storage::Authority;

/// A put that returned is seen by every later get, of every client.
pub async fn records_are_read_back(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let b = volume.open().await;
    assert_eq!(a.get_record("seals").await.unwrap(), None);
    for value in ["one", "two", "", "three"] {
        let bytes = Bytes::from(value);
        a.put_record("seals", bytes.clone(), Authority::Owner)
            .await
            .unwrap();
        assert_eq!(a.get_record("seals").await.unwrap(), Some(bytes.clone()));
        assert_eq!(b.get_record("seals").await.unwrap(), Some(bytes));
    }
    let big = Bytes::from(vec![7; 1 << 20]);
    let put = a.put_record("big", big.clone(), Authority::Owner).await;
    put.unwrap();
    assert_eq!(b.get_record("big").await.unwrap(), Some(big));
}

/// Listing gives names in order, with the newest values, however large.
pub async fn records_are_listed_by_prefix(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let big = |byte| Bytes::from(vec![byte; 1 << 20]);
    for (byte, name) in ["node/b", "node/a", "nod", "node/c", "other"]
        .iter()
        .enumerate()
    {
        a.put_record(name, big(byte as u8), Authority::Owner)
            .await
            .unwrap();
    }
    let put = a.put_record("node/a", Bytes::from("x"), Authority::Owner);
    put.await.unwrap();
    a.remove_record("node/c", Authority::Owner).await.unwrap();
    let b = volume.open().await;
    let listed = b.list_records("node/").await.unwrap();
    let expected = [
        ("node/a".to_owned(), Bytes::from("x")),
        ("node/b".to_owned(), big(0)),
    ];
    assert_eq!(listed, expected);
    assert_eq!(b.list_records("").await.unwrap().len(), 4);
    assert!(b.list_records("zzz").await.unwrap().is_empty());
}

/// Removing is a write: it is not undone by an older value.
pub async fn removed_records_are_gone(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let put = a.put_record("r", Bytes::from("x"), Authority::Owner);
    put.await.unwrap();
    a.remove_record("r", Authority::Owner).await.unwrap();
    assert_eq!(a.get_record("r").await.unwrap(), None);
    assert_eq!(volume.open().await.get_record("r").await.unwrap(), None);
    let put = a.put_record("r", Bytes::from("y"), Authority::Owner);
    put.await.unwrap();
    assert_eq!(a.get_record("r").await.unwrap(), Some(Bytes::from("y")));
}

/// A fenced owner is told so. What it tried may have reached a zone before the fence did, so its
/// outcome is open until the new owner promotes the record; nothing of it appears afterwards.
pub async fn owner_records_are_fenced(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let put = a.put_record("r", Bytes::from("x"), Authority::Owner);
    put.await.unwrap();
    let (b, _) = owner(volume, "b").await;
    let open = a.put_record("r", Bytes::from("open"), Authority::Owner);
    assert!(open.await.unwrap_err().is_fenced());
    let survivor = b.promote_record("r").await.unwrap().unwrap();
    assert!(survivor == "x" || survivor == "open", "{survivor:?}");
    let late = a.put_record("r", Bytes::from("late"), Authority::Owner);
    assert!(late.await.unwrap_err().is_fenced());
    for _ in 0..20 {
        let seen = b.get_record("r").await.unwrap();
        assert_eq!(seen.as_ref(), Some(&survivor));
    }
    let put = b.put_record("r", Bytes::from("y"), Authority::Owner);
    put.await.unwrap();
    assert_eq!(b.get_record("r").await.unwrap(), Some(Bytes::from("y")));
}

/// A node writes its own records in every life, whoever owns the epoch.
pub async fn node_records_need_no_epoch(volume: &dyn Volume) {
    let (owner, _) = owner(volume, "a").await;
    for life in 0..3 {
        let node = volume.open().await;
        for beat in 0..3 {
            let value = Bytes::from(format!("{life}.{beat}"));
            node.put_record("node/n", value.clone(), Authority::Node)
                .await
                .unwrap();
            assert_eq!(owner.get_record("node/n").await.unwrap(), Some(value));
        }
    }
    let removed = owner.remove_record("node/n", Authority::Owner);
    removed.await.unwrap();
    let node = volume.open().await;
    assert_eq!(node.get_record("node/n").await.unwrap(), None);
    let value = Bytes::from("back");
    node.put_record("node/n", value.clone(), Authority::Node)
        .await
        .unwrap();
    assert_eq!(owner.get_record("node/n").await.unwrap(), Some(value));
}

/// What each of two nodes writes is there when it is told so, also if they take turns.
pub async fn nodes_take_turns_at_a_record(volume: &dyn Volume) {
    let (owner, _) = owner(volume, "a").await;
    let (one, other) = (volume.open().await, volume.open().await);
    // In twos, so that each writes behind itself and behind the other one.
    for turn in 0..8 {
        let node = if turn / 2 % 2 == 0 { &one } else { &other };
        let value = Bytes::from(format!("{turn}"));
        node.put_record("r", value.clone(), Authority::Node)
            .await
            .unwrap();
        assert_eq!(owner.get_record("r").await.unwrap(), Some(value));
    }
}

/// A promoted record is the owner's.
pub async fn promoted_records_are_stable(volume: &dyn Volume) {
    let (a, _) = owner(volume, "a").await;
    let put = a.put_record("r", Bytes::from("x"), Authority::Owner);
    put.await.unwrap();
    let (b, _) = owner(volume, "b").await;
    let x = Some(Bytes::from("x"));
    assert_eq!(b.promote_record("r").await.unwrap(), x);
    assert_eq!(b.promote_record("r").await.unwrap(), x);
    assert_eq!(b.get_record("r").await.unwrap(), x);
    assert_eq!(b.promote_record("none").await.unwrap(), None);
    let put = b.put_record("r", Bytes::from("y"), Authority::Owner);
    put.await.unwrap();
    assert_eq!(b.get_record("r").await.unwrap(), Some(Bytes::from("y")));
}
