//! Scrubs, and replicas that come back with nothing.

use bytes::Bytes;

use super::super::*;
use super::harness::{Harness, SINGLE, byte_of, data, key};
use super::peer::Peer;
use crate::error::ErrorKind;
use crate::ids::ZoneId;
use crate::membership::{Change, Member};
use crate::storage::{Authority, ScrubPage, SyncScope};

impl Harness {
    fn scrub_page(&mut self, after: Option<(BlockKey, Generation)>) -> ScrubPage {
        match self.finish(Call::Scrub(after)).unwrap() {
            Output::Scrubbed(page) => page,
            other => panic!("no page: {other:?}"),
        }
    }

    /// From the beginning to the end, mending everything; what was found.
    fn scrub(&mut self) -> Vec<ScrubPage> {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = self.scrub_page(after);
            let mend = self.start(Call::Mend(page.differences.clone()));
            while self.result(mend).is_none() {
                self.pass(Time::from_millis(20));
                self.run();
            }
            after = page.next;
            pages.push(page);
            if after.is_none() {
                return pages;
            }
        }
    }

    fn end_scrub(&mut self) -> Vec<ReplicaId> {
        let end = self.start(Call::EndScrub);
        for _ in 0..20 {
            self.run();
            if let Some(result) = self.result(end) {
                let Output::Rebuilt(replicas) = result.unwrap() else {
                    panic!("something else");
                };
                return replicas;
            }
            self.pass(Time::from_millis(20));
        }
        panic!("the scrub does not end");
    }

    fn put_record(&mut self) {
        let put = Call::PutRecord {
            name: "a".into(),
            value: Some(Bytes::from("1")),
            authority: Authority::Owner,
        };
        self.finish(put).unwrap();
    }

    /// The replica comes back with an empty disk, and is told to begin anew.
    fn lose_everything(&mut self, replica: u8) {
        self.disconnect(replica);
        let was = &self.peers[usize::from(replica)];
        let (store, membership) = (was.store.unwrap(), was.membership.clone());
        let mut empty = Peer::new(store.number(), None);
        (empty.rebuilding, empty.membership) = (true, membership);
        self.peers[usize::from(replica)] = empty;
        self.connect(replica);
        self.run();
    }
}

fn written() -> Harness {
    let mut d = Harness::owner();
    for block in 0..10 {
        d.write(block, SINGLE, block as u8);
    }
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.run();
    d
}

/// Another owner, who knows nothing of what the one before wrote.
fn succeeded(mut d: Harness) -> Harness {
    let mut next = Harness::new(3, 2);
    next.peers = std::mem::take(&mut d.peers);
    let own = Call::OwnEpoch {
        owner: "b/1".into(),
    };
    assert_eq!(next.finish(own).unwrap(), Output::Epoch(Epoch(2)));
    next.run();
    next
}

fn differences(pages: &[ScrubPage]) -> usize {
    pages.iter().map(|p| p.differences.len()).sum()
}

#[test]
fn equal_replicas_have_nothing_to_mend() {
    let mut d = written();
    let pages = d.scrub();
    assert!(pages.len() > 1, "the peers' pages are small");
    assert_eq!(differences(&pages), 0);
    assert_eq!(pages.iter().map(|p| p.blocks).sum::<u64>(), 10);
    assert!(d.end_scrub().is_empty());
    assert_eq!(d.core.counters().copies_scrubbed, 30);
}

#[test]
fn a_scrub_mends_what_is_missing_and_what_is_damaged() {
    let mut d = written();
    d.peers[1].blocks.remove(&(key(3), SINGLE));
    d.peers[2].damaged.push(key(7));
    assert_eq!(differences(&d.scrub()), 2);
    assert_eq!(d.peers[1].blocks, d.peers[0].blocks);
    assert_eq!(d.core.counters().copies_damaged, 1);
    assert_eq!(d.core.counters().copies_mended, 2);
}

#[test]
fn nothing_is_compared_with_too_few_replicas() {
    let mut d = written();
    d.disconnect(1);
    d.disconnect(2);
    let page = d.start(Call::Scrub(None));
    d.run();
    assert!(d.result(page).is_none());
    d.connect(2);
    d.run();
    d.pass(Time::from_millis(20));
    d.run();
    assert!(d.result(page).unwrap().is_ok());
}

#[test]
fn a_replica_that_lost_everything_is_not_believed_until_it_is_rebuilt() {
    let mut d = written();
    d.lose_everything(0);
    d.disconnect(2);
    let read = d.start(Call::Read {
        key: key(3),
        up_to: SINGLE,
    });
    let reader = d.start(Call::GetRecord("r".into()));
    d.pass(Time::from_secs(1));
    d.run();
    // The version list knows the block, so one replica that has it is enough.
    assert_eq!(byte_of(d.result(read).unwrap()), Some(3));
    assert!(d.result(reader).is_none(), "one that counts is no majority");
    d.connect(2);
    d.run();
    assert!(d.result(reader).unwrap().is_ok());
}

#[test]
fn a_rebuilding_replica_has_no_vote() {
    let mut d = Harness::new(3, 2);
    d.disconnect(0);
    d.peers[0].rebuilding = true;
    d.connect(0);
    d.disconnect(2);
    let own = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    d.run();
    assert!(d.result(own).is_none());
    d.connect(2);
    d.run();
    assert!(d.result(own).unwrap().is_ok());
}

#[test]
fn a_rebuilt_replica_has_blocks_and_records_and_counts() {
    let mut d = written();
    for (name, value) in [("a", Some("1")), ("b", None)] {
        let put = Call::PutRecord {
            name: name.into(),
            value: value.map(Bytes::from),
            authority: Authority::Owner,
        };
        d.finish(put).unwrap();
    }
    d.lose_everything(0);
    d.write(11, SINGLE, 11);
    assert_eq!(differences(&d.scrub()), 10);
    assert_eq!(d.end_scrub(), [ReplicaId(0)]);
    assert!(!d.peers[0].rebuilding);
    assert_eq!(d.peers[0].blocks, d.peers[1].blocks);
    assert_eq!(d.peers[0].records, d.peers[1].records);
    d.disconnect(2);
    let got = d.finish(Call::GetRecord("a".into())).unwrap();
    assert_eq!(got, Output::Record(Some(Bytes::from("1"))));
}

#[test]
fn a_scrub_with_a_gap_rebuilds_nobody() {
    let mut d = written();
    d.lose_everything(0);
    let first = d.scrub_page(None);
    d.disconnect(0);
    d.connect(0);
    d.run();
    let mut after = first.next;
    while after.is_some() {
        after = d.scrub_page(after).next;
    }
    assert!(d.end_scrub().is_empty());
    assert!(d.peers[0].rebuilding);
}

#[test]
fn scrubbing_needs_an_epoch_and_ends_with_it() {
    let mut d = Harness::new(3, 2);
    let none = d.finish(Call::Scrub(None)).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Invalid);
    let mut d = written();
    for peer in &mut d.peers {
        peer.fence.own(Epoch(9), "b/1", false);
    }
    assert!(d.finish(Call::Scrub(None)).unwrap_err().is_fenced());
    assert!(d.core.write(key(1), SINGLE, data(1)).is_err());
}

/// A replica that lost its disk has forgotten the fence. An owner who has been deposed, and does not
/// know it, may be the one who tells it to begin anew: it must not complete a sync with its help.
#[test]
fn a_rebuilding_replica_does_not_make_a_write_synced() {
    let mut d = Harness::owner();
    d.disconnect(1);
    d.disconnect(2);
    d.write(0, SINGLE, 1);
    d.lose_everything(1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(
        d.peers[1].newest(key(0), SINGLE).is_some(),
        "it takes writes"
    );
    assert!(d.result(sync).is_none());
    d.connect(2);
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
}

/// A replica came back empty and full: what was on its way to it while its pages were compared was
/// refused, and what it had acknowledged with its old disk was nowhere but there (seed 87333).
#[test]
fn a_replica_that_refuses_writes_is_not_rebuilt() {
    let mut d = Harness::owner();
    d.peers[0].full = true;
    d.write(3, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.lose_everything(1);
    d.peers[1].full = true;
    d.write(3, SINGLE, 2);
    d.run();
    let pages = d.scrub();
    assert_eq!(differences(&pages), 0, "the newer write is on its way");
    let end = d.start(Call::EndScrub);
    for _ in 0..5 {
        d.pass(Time::from_millis(20));
        d.run();
    }
    assert!(d.result(end).is_none());
    assert!(d.peers[1].rebuilding);
    d.peers.iter_mut().for_each(|peer| peer.full = false);
    while d.result(end).is_none() {
        d.pass(Time::from_millis(100));
        d.run();
    }
    assert!(!d.peers[1].rebuilding);
    assert!(d.peers[1].blocks.contains_key(&(key(3), SINGLE)));
}

/// A scrub waited until a full zone had room, and nobody was rebuilt meanwhile, nor could the full zone be replaced.
// hazard: ZONE-24
#[test]
fn a_scrub_does_not_wait_for_a_full_replica() {
    let mut d = written();
    d.peers[2].blocks.remove(&(key(3), SINGLE));
    d.peers[2].full = true;
    d.lose_everything(1);
    d.scrub();
    assert_eq!(d.end_scrub(), [ReplicaId(1)]);
    assert_eq!(d.peers[1].blocks, d.peers[0].blocks);
    d.peers[2].full = false;
    while d.peers[2].blocks != d.peers[0].blocks {
        d.pass(Time::from_millis(500));
        d.run();
    }
}

/// r0 acknowledged a write that the others had no room for, lost its disk, and was rebuilt from them, who lacked
/// the write. Then one of the others took it, and with what r0 had acknowledged once that was k: in one copy.
// hazard: ZONE-32
#[test]
fn acknowledgements_of_a_lost_disk_no_longer_count() {
    let mut d = Harness::owner();
    d.peers[1].full = true;
    d.peers[2].full = true;
    d.write(3, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.peers[0].newest(key(3), SINGLE).is_some());
    d.lose_everything(0);
    d.scrub();
    assert_eq!(d.end_scrub(), [ReplicaId(0)]);
    assert!(d.result(sync).is_none(), "one has room");
    d.peers[1].full = false;
    while d.result(sync).is_none() {
        d.pass(Time::from_millis(100));
        d.run();
    }
    let copies = d
        .peers
        .iter()
        .filter(|p| p.newest(key(3), SINGLE).is_some());
    assert_eq!(copies.count(), 2);
}

/// The last acknowledgement that a write needed was given while its replica did not count yet.
// hazard: ZONE-32
#[test]
fn acknowledgements_of_a_rebuilt_replica_count_once_it_counts() {
    let mut d = Harness::owner();
    d.lose_everything(0);
    d.peers[2].full = true;
    d.write(3, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.result(sync).is_none(), "r0 does not count");
    d.scrub();
    assert_eq!(d.end_scrub(), [ReplicaId(0)]);
    assert!(d.result(sync).unwrap().is_ok());
}

// hazard: ZONE-32
#[test]
fn a_record_that_a_lost_disk_took_is_put_again() {
    let mut d = Harness::owner();
    d.disconnect(1);
    d.disconnect(2);
    let put = d.start(Call::PutRecord {
        name: "r".into(),
        value: Some(Bytes::from("x")),
        authority: Authority::Owner,
    });
    d.run();
    assert!(d.peers[0].records.contains_key("r"));
    d.lose_everything(0);
    d.connect(1);
    d.run();
    assert!(d.result(put).is_none(), "one copy of it is left");
    d.connect(2);
    d.run();
    assert!(d.result(put).unwrap().is_ok());
}

/// The replica that was being rebuilt could not read its files once, and was left out of the page: so it had not taken
/// part in the scrub, and stayed one that does not count.
// hazard: ZONE-28
#[test]
fn a_replica_that_cannot_answer_for_a_moment_takes_part_all_the_same() {
    let mut d = written();
    d.lose_everything(2);
    d.peers[2].unreadable = 1;
    let mut after = None;
    loop {
        let scrub = d.start(Call::Scrub(after));
        let page = loop {
            d.run();
            match d.result(scrub) {
                Some(Ok(Output::Scrubbed(page))) => break page,
                Some(other) => panic!("no page: {other:?}"),
                None => d.pass(Time::from_millis(20)),
            }
        };
        d.start(Call::Mend(page.differences));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(d.end_scrub(), [ReplicaId(2)]);
    // One that never can keeps nobody waiting.
    d.peers[1].unreadable = u32::MAX;
    let scrub = d.start(Call::Scrub(None));
    for _ in 0..100 {
        d.run();
        d.pass(Time::from_millis(20));
    }
    assert!(d.result(scrub).is_some());
}

/// Two replicas had a write; the copy of one was damaged, and the other was away. A scrub found nothing to compare the
/// rest with, counted all the same, and let an exchange end: a quorum of the new members missed the write.
// hazard: ZONE-7
#[test]
fn a_scrub_that_reads_no_intact_copy_while_somebody_is_away_counts_for_nobody() {
    let mut d = written();
    d.peers[2].blocks.remove(&(key(3), SINGLE));
    d.peers[0].damaged.push(key(3));
    d.disconnect(1);
    d.scrub();
    d.end_scrub();
    assert!(d.core.shared.looked_through().is_empty());
    d.connect(1);
    d.run();
    d.scrub();
    d.end_scrub();
    assert_eq!(d.core.shared.looked_through().len(), 3);
}

/// A zone lost its disk, and another one lacked some blocks, too. While these were copied, their file was removed: what
/// was known of them was found nowhere any more, so their copies waited for the zone that never came back, and with them
/// the exchange that was to replace it.
// hazard: ZONE-29
#[test]
fn copies_of_what_is_removed_meanwhile_wait_for_nobody_who_is_away() {
    let mut d = written();
    d.disconnect(0);
    d.peers[2].blocks.remove(&(key(0), SINGLE));
    let page = d.scrub_page(None);
    assert_eq!(page.differences.len(), 1);
    let mend = d.start(Call::Mend(page.differences));
    d.pass(Time::from_millis(20));
    // The copy is being looked for, and the file is removed before anybody answers.
    for peer in &mut d.peers {
        peer.blocks.clear();
    }
    for _ in 0..100 {
        d.pass(Time::from_millis(20));
        d.run();
    }
    assert!(d.result(mend).is_some_and(|result| result.is_ok()));
}

/// Two of five lost their disks, and the connection to the one whose turn it was broke while its records were read. The
/// other one took its place in the middle of its turn: it counted again without a write that it had refused.
// hazard: ZONE-27
#[test]
fn a_replica_whose_turn_was_cut_short_leaves_nothing_to_the_next_one() {
    let mut d = Harness::new(5, 3);
    d.own();
    d.lose_everything(3);
    d.lose_everything(4);
    d.peers[3].full = true;
    d.write(7, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    let pages = d.scrub();
    assert_eq!(differences(&pages), 0, "the write is on its way to r3");
    let end = d.start(Call::EndScrub);
    d.pass(Time::from_millis(20));
    assert!(d.asked(0, |request| matches!(request, Request::ListRecords { .. })));
    d.disconnect(4);
    for _ in 0..5 {
        d.run();
        d.pass(Time::from_millis(20));
    }
    assert!(d.peers[3].rebuilding, "it lacks what it refused");
    assert!(d.result(end).is_none());
    d.peers[3].full = false;
    for _ in 0..10 {
        d.pass(Time::from_millis(100));
        d.run();
    }
    assert_eq!(
        d.result(end).unwrap().unwrap(),
        Output::Rebuilt(vec![ReplicaId(3)])
    );
    assert!(d.peers[3].blocks.contains_key(&(key(7), SINGLE)));
}

/// The same while records were copied: the next one's turn waited for answers that the one before it owed.
// hazard: ZONE-27
#[test]
fn a_scrub_ends_although_records_were_on_their_way_to_one_that_is_away() {
    let mut d = Harness::new(5, 3);
    d.own();
    d.put_record();
    d.lose_everything(3);
    d.lose_everything(4);
    d.scrub();
    let end = d.start(Call::EndScrub);
    d.pass(Time::from_millis(20));
    while !d.asked(4, |request| matches!(request, Request::PutRecord { .. })) {
        (0..3).for_each(|replica| {
            d.deliver(replica);
        });
    }
    d.disconnect(4);
    for _ in 0..5 {
        d.run();
        d.pass(Time::from_millis(20));
    }
    assert_eq!(
        d.result(end).unwrap().unwrap(),
        Output::Rebuilt(vec![ReplicaId(3)])
    );
    assert_eq!(d.peers[3].records, d.peers[0].records);
}

/// An exchange read the records, and one of those that they were to be copied to went away meanwhile: the exchange
/// waited for its answer for ever.
// hazard: ZONE-18
#[test]
fn an_exchange_ends_although_a_member_goes_away_while_records_are_read() {
    let mut d = written();
    d.put_record();
    let joins = Member {
        store: StoreId::new(4).unwrap(),
        address: "replica3".into(),
        zone: ZoneId(2),
    };
    let change = Change {
        joining: vec![joins],
        leaving: vec![StoreId::new(3).unwrap()],
        sync_replicas: 2,
        ..Change::default()
    };
    d.finish(Call::ChangeMembers(change)).unwrap();
    d.peers[3].membership = d.core.membership().cloned().map(Box::new);
    d.peers[3].rebuilding = true;
    d.connect(3);
    d.run();
    d.scrub();
    assert_eq!(d.end_scrub(), [ReplicaId(3)]);
    let finish = d.start(Call::FinishChange);
    let lists = |request: &Request| matches!(request, Request::ListRecords { .. });
    while !d.asked(1, lists) {
        (0..4).for_each(|replica| {
            d.deliver(replica);
        });
    }
    d.disconnect(1);
    for _ in 0..5 {
        d.run();
        d.pass(Time::from_millis(20));
    }
    assert_eq!(d.result(finish).unwrap().unwrap(), Output::Ended(true));
    assert_eq!(d.peers[3].records, d.peers[0].records);
}

/// A zone lost its disk while another one began to leave, and nobody had noticed. The joint membership needed the lost one for
/// every quorum, and nothing could end any more, although the two others had everything.
// hazard: ZONE-19
#[test]
fn members_count_jointly_only_once_those_who_will_be_needed_have_answered() {
    let mut d = written();
    d.scrub();
    d.end_scrub();
    let leaves = Change {
        leaving: vec![StoreId::new(2).unwrap()],
        sync_replicas: 2,
        ..Change::default()
    };
    let begin = d.start(Call::ChangeMembers(leaves));
    while d.result(begin).is_none() {
        for replica in [1, 2] {
            d.commit(replica);
            d.deliver(replica);
        }
    }
    assert_eq!(d.finish(Call::FinishChange).unwrap(), Output::Ended(false));
    let change = |d: &Harness| d.core.membership().unwrap().change.clone();
    assert!(change(&d).is_some_and(|change| !change.joint));
    d.run();
    assert_eq!(d.finish(Call::FinishChange).unwrap(), Output::Ended(true));
    assert_eq!(change(&d), None);
}

/// Two zones lack a block that only the third one has, which is more than may ever be lost. Its copies were looked for at
/// those two, who make a quorum, and not at the one that had it: the scrub mended nothing, whoever had written the block.
// hazard: ZONE-30
#[test]
fn a_copy_is_taken_from_the_only_one_that_has_it() {
    for written_by_another in [false, true] {
        let mut d = written();
        if written_by_another {
            d = succeeded(d);
        }
        for peer in &mut d.peers[..2] {
            peer.blocks.remove(&(key(3), SINGLE));
        }
        assert_eq!(differences(&d.scrub()), 2);
        assert_eq!(d.peers[0].blocks, d.peers[2].blocks);
        assert_eq!(d.peers[1].blocks, d.peers[2].blocks);
    }
}

/// The beginning of a file was given back while one of its blocks was being copied: the zone had heard of that by the
/// time that the copy arrived, and kept it.
// hazard: ZONE-31
#[test]
fn blocks_removed_while_they_were_read_are_not_copied() {
    let mut d = written();
    d.peers[2].blocks.remove(&(key(0), SINGLE));
    let page = d.scrub_page(None);
    assert_eq!(page.differences.len(), 1);
    let mend = d.start(Call::Mend(page.differences));
    d.pass(Time::from_millis(20));
    let reads = |request: &Request| matches!(request, Request::Read { .. });
    assert!(d.asked(0, reads) || d.asked(1, reads));
    let remove = d.start(Call::RemoveBlocksBefore(key(0).file, key(10).block));
    d.deliver(2);
    for _ in 0..5 {
        d.run();
        d.pass(Time::from_millis(20));
    }
    assert!(d.result(mend).is_some() && d.result(remove).is_some());
    assert!(d.peers[2].blocks.is_empty());
}

/// A zone lost its disk, and one block was damaged in another. The copies of that block were looked for until the lost disk came
/// back, which it never does, and with them the rebuild of everything behind it; so was the block by whoever read it.
// hazard: ZONE-26
#[test]
fn a_block_whose_last_version_nobody_can_tell_holds_up_no_other() {
    let mut d = succeeded(written());
    d.disconnect(2);
    let now = d.now;
    d.core.advise(now, ReplicaId(2), StoreId::new(4));
    d.collect();
    d.peers[3].membership = d.core.membership().cloned().map(Box::new);
    d.peers[3].rebuilding = true;
    d.peers[1].damaged.push(key(3));
    d.connect(3);
    d.run();
    let pages = d.scrub();
    assert!(differences(&pages) > 0);
    assert_eq!(d.peers[3].blocks.len(), 9, "all but the one");
    assert_eq!(d.end_scrub(), [], "it does not have everything");
    assert!(d.peers[3].rebuilding);
    let read = d.start(Call::Read {
        key: key(3),
        up_to: SINGLE,
    });
    d.run();
    let error = d.result(read).expect("nobody is left").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
