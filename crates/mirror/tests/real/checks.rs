//! Findings about members before anything starts.

use mirror::driver::{Checked, Finding, Level};

use crate::server::psql;
use crate::site::Site;

/// Each finding, with its level and whose it is; the beginning of what it says, and of the names.
fn said(checked: &Checked) -> Vec<String> {
    let findings = checked.findings.iter();
    let said = findings.map(|one| {
        let what: String = one.what.chars().take(40).collect();
        let names = one.names.join(", ");
        format!("{:?} {} {what}: {names}", one.level, one.member)
    });
    said.collect()
}

#[track_caller]
fn has(checked: &Checked, wanted: &[&str]) {
    let said = said(checked);
    for one in wanted {
        let parts: Vec<&str> = one.split(" .. ").collect();
        let is_it = |said: &String| parts.iter().all(|part| said.contains(part));
        assert!(said.iter().any(is_it), "{one}: {said:#?}");
    }
}

/// A database and a server of which nearly everything is refused, or differs.
const AMISS: &str = "
    CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
    CREATE TABLE keyless (id int);
    CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
    SELECT lo_create(0);
    CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER always BEFORE INSERT ON keyless FOR EACH ROW EXECUTE FUNCTION f();
    ALTER TABLE keyless ENABLE ALWAYS TRIGGER always;
    CREATE TYPE mood AS ENUM ('sad');
    CREATE TABLE hashed (m mood) PARTITION BY HASH (m);
    CREATE MATERIALIZED VIEW seen AS SELECT now();
    CREATE ROLE hasty; ALTER ROLE hasty SET synchronous_commit = 'off'";

#[test]
fn what_would_be_refused_or_differ_is_said_before_anything_starts() {
    let site = Site::unmanaged("", |server| {
        server.configure("wal_level = replica\nmax_replication_slots = 1\nsynchronous_standby_names = 'another'\nsynchronous_commit = local");
    });
    psql(&site.member(0), AMISS).expect("it is made");
    let checked = site.check(0);
    assert!(!checked.ok);
    has(
        &checked,
        &[
            "Refused member .. wal_level .. replica",
            "Refused other_member .. wal_level .. replica",
            "Refused member .. two replication slots .. 0 of 1",
            "Refused member .. other standbys .. another",
            "Refused member .. unlogged .. unlogged",
            "Refused member .. large objects .. 1",
            "Refused member .. triggers with .. always on public.keyless",
            "Refused member .. hash partitions .. hashed",
            "Differs member .. commits do not wait .. hasty",
            "Advice member .. tables without .. deferred",
            "Advice member .. tables without .. keyless",
            "Advice member .. materialized .. seen",
            "Advice both .. roles differ .. hasty",
        ],
    );
    let json = serde_json::to_string(&checked).expect("it is written");
    assert_eq!(serde_json::from_str::<Checked>(&json).ok(), Some(checked));
}

/// Servers that are as they should be, before and while they are mirrored; the other one need not have the database.
#[test]
fn nothing_is_refused_where_a_mirror_can_begin() {
    let mut site = Site::unmanaged("", |_| {});
    psql(&site.member(0), "CREATE TABLE t (id int PRIMARY KEY)").expect("it is made");
    site.sides[1].server.sql(&["DROP DATABASE app"]);
    for side in &site.sides {
        let reset = "ALTER DATABASE postgres RESET synchronous_commit";
        side.server.sql(&[reset]);
    }
    let checked = site.check(0);
    assert!(checked.ok, "{:#?}", said(&checked));
    let is_advice = |one: &Finding| one.level == Level::Advice;
    assert!(checked.findings.iter().all(is_advice));
    has(&checked, &["Advice member .. other databases .. postgres"]);
    site.sides[1].server.sql(&["CREATE DATABASE app"]);
    site.manage(0);
    site.manage(1);
    site.settle();
    for at in 0..2 {
        let checked = site.check(at);
        assert!(checked.ok, "{:#?}", said(&checked));
    }
    site.sides[1].server.stop("fast");
    has(
        &site.check(0),
        &["Refused other_member .. the member cannot be asked"],
    );
}
