use super::*;

fn status(name: &str, version: u32, role: Role) -> Status {
    Status {
        server_version_num: Some(version),
        ..super::super::command::tests::status(name, role)
    }
}

/// North has 15.14, and south 18.1.
fn both(north: Role, south: Role) -> [Option<Status>; 2] {
    [
        Some(status("north", 150_014, north)),
        Some(status("south", 180_001, south)),
    ]
}

fn verdict(equal: bool) -> Verdict {
    Verdict {
        equal,
        differences: if equal { vec![] } else { vec!["t".to_owned()] },
        ..Verdict::default()
    }
}

fn side(manager: &str, version: &str) -> Side {
    Side {
        manager: manager.to_owned(),
        version: version.to_owned(),
    }
}

const FORWARD: Direction = Direction::Forward;
const BACK: Direction = Direction::Back;
const PRIMARY: Role = Role::Primary;
const STANDBY: Role = Role::Standby;

const fn recovering(why: Why) -> Role {
    Role::Recovering(why)
}

fn refused(next: Next) -> Refusal {
    match next {
        Next::Refused(refusal) => refusal,
        next => panic!("{next:?}"),
    }
}

fn waits(next: Next) -> String {
    match next {
        Next::Wait(what) => what,
        next => panic!("{next:?}"),
    }
}

#[test]
fn versions_are_told_as_people_write_them() {
    assert_eq!((release(150_014), major(150_014)), ("15.14".to_owned(), 15));
    assert_eq!((release(180_001), major(180_001)), ("18.1".to_owned(), 18));
    assert_eq!(release(190_000), "19.0");
}

#[test]
fn members_are_compared_before_the_switchover_and_differences_end_it() {
    let statuses = both(PRIMARY, STANDBY);
    assert_eq!(next(FORWARD, &statuses, None, false), Next::Verify);
    let equal = verdict(true);
    assert_eq!(
        next(FORWARD, &statuses, Some(&equal), false),
        Next::SwitchOver
    );
    let differs = refused(next(FORWARD, &statuses, Some(&verdict(false)), false));
    assert_eq!(differs, Refusal::Differs(vec!["t".to_owned()]));
    // The same whichever file names which manager first.
    let [north, south] = statuses;
    assert_eq!(next(FORWARD, &[south, north], None, false), Next::Verify);
}

#[test]
fn the_way_back_is_the_same_the_other_way_round() {
    let statuses = both(STANDBY, PRIMARY);
    assert_eq!(next(BACK, &statuses, None, false), Next::Verify);
    let equal = verdict(true);
    assert_eq!(next(BACK, &statuses, Some(&equal), false), Next::SwitchOver);
    assert_eq!(
        next(BACK, &both(PRIMARY, STANDBY), Some(&equal), true),
        Next::Done
    );
}

#[test]
fn a_member_that_is_primary_already_is_named() {
    let north = refused(next(BACK, &both(PRIMARY, STANDBY), None, false));
    assert_eq!(north, Refusal::Serves(BACK, side("north", "15.14")));
    let south = refused(next(FORWARD, &both(STANDBY, PRIMARY), None, false));
    assert_eq!(south, Refusal::Serves(FORWARD, side("south", "18.1")));
    assert!(south.to_string().ends_with("primary already: south (18.1)"));
}

#[test]
fn one_major_version_is_no_upgrade() {
    let mut statuses = both(PRIMARY, STANDBY);
    statuses[1] = Some(status("south", 150_002, STANDBY));
    let sides = [side("north", "15.14"), side("south", "15.2")];
    for direction in [FORWARD, BACK] {
        let refusal = refused(next(direction, &statuses, None, false));
        assert_eq!(refusal, Refusal::SameVersion(sides.clone()));
    }
    assert_eq!(finish(&statuses), Err(Refusal::SameVersion(sides)));
    assert_eq!(upgrade(&statuses), None);
}

#[test]
fn what_nobody_knows_is_not_guessed() {
    let mut statuses = both(PRIMARY, STANDBY);
    statuses[1] = None;
    let refusal = refused(next(FORWARD, &statuses, None, false));
    assert_eq!(refusal, Refusal::Unreachable);
    // A manager of an earlier version says nothing of it.
    let mut south = status("south", 0, STANDBY);
    south.server_version_num = None;
    statuses[1] = Some(south.clone());
    let refusal = refused(next(FORWARD, &statuses, None, false));
    assert_eq!(refusal, Refusal::Unknown("south".to_owned()));
    south.role = recovering(Why::NoMember);
    statuses[1] = Some(south);
    let refusal = refused(next(FORWARD, &statuses, None, false));
    assert_eq!(refusal, Refusal::NoMember("south".to_owned()));
}

#[test]
fn a_member_that_is_filled_or_catches_up_is_waited_for() {
    let mut statuses = both(PRIMARY, recovering(Why::Behind));
    let said = waits(next(FORWARD, &statuses, None, false));
    assert_eq!(said, "south (18.1) to follow: it is to be filled");
    let south = statuses[1].as_mut().expect("it answers");
    (south.is_filling, south.filling) = (true, Some("restoring, for 12 s in all".to_owned()));
    let said = waits(next(FORWARD, &statuses, None, false));
    assert!(said.ends_with("it is being filled: restoring, for 12 s in all"));
    // Its database is gone while it is made.
    statuses[1].as_mut().expect("it answers").role = recovering(Why::NoMember);
    waits(next(FORWARD, &statuses, None, false));
    // A transfer that fails says why.
    let south = statuses[1].as_mut().expect("it answers");
    south.advice = Some("the member cannot be filled: no room".to_owned());
    assert!(waits(next(FORWARD, &statuses, None, false)).ends_with("no room"));
    let catching_up = both(PRIMARY, recovering(Why::CatchingUp));
    let said = waits(next(FORWARD, &catching_up, None, false));
    assert_eq!(said, "south (18.1) to follow: it lacks 2 transactions");
    // One that its primary does not wait for is too far behind.
    let mut behind = both(PRIMARY, STANDBY);
    behind[0].as_mut().expect("it answers").has_standby = false;
    waits(next(FORWARD, &behind, None, false));
    waits(next(
        FORWARD,
        &both(recovering(Why::TakingOver), STANDBY),
        None,
        false,
    ));
}

#[test]
fn a_member_that_does_not_return_by_itself_is_refused() {
    for why in [Why::Diverged, Why::Occupied, Why::Ahead, Why::Foreign] {
        let mut statuses = both(PRIMARY, recovering(why));
        let south = statuses[1].as_mut().expect("it answers");
        south.difference = Some("transaction 7: another row".to_owned());
        let refusal = refused(next(FORWARD, &statuses, None, false));
        let text = refusal.to_string();
        assert_eq!(
            text,
            "the member of south (18.1) is set aside: transaction 7: another row"
        );
        assert!(refusal.advice().contains("resolve --keep"));
    }
    let down = both(PRIMARY, recovering(Why::NoMember));
    let refusal = refused(next(FORWARD, &down, None, false));
    assert_eq!(refusal, Refusal::NoMember("south (18.1)".to_owned()));
    let closed = both(recovering(Why::Diverged), PRIMARY);
    let refusal = refused(next(BACK, &closed, None, false));
    assert!(matches!(refusal, Refusal::SetAside(side, _) if side.manager == "north"));
}

#[test]
fn after_the_switchover_both_are_waited_for() {
    let after = |north, south| next(FORWARD, &both(north, south), Some(&verdict(true)), true);
    let starting = recovering(Why::Starting);
    let said = waits(after(starting, STANDBY));
    assert!(said.starts_with("south (18.1) to serve"), "{said}");
    waits(after(starting, recovering(Why::TakingOver)));
    let said = waits(after(starting, PRIMARY));
    assert!(said.starts_with("north (15.14) to follow"), "{said}");
    assert_eq!(after(STANDBY, PRIMARY), Next::Done);
    // The old one does not come back: it is done, and there is no way back.
    assert_eq!(after(recovering(Why::Diverged), PRIMARY), Next::Done);
    assert_eq!(after(recovering(Why::NoMember), PRIMARY), Next::Done);
    let refusal = refused(after(PRIMARY, STANDBY));
    assert_eq!(refusal, Refusal::Stayed(side("north", "15.14")));
    // The epoch changes: somebody may not answer.
    let mut statuses = both(STANDBY, PRIMARY);
    statuses[0] = None;
    waits(next(FORWARD, &statuses, Some(&verdict(true)), true));
}

#[test]
fn the_state_of_an_upgrade_follows_from_versions_and_states() {
    let told = |statuses: &[Option<Status>]| upgrade(statuses).map(|upgrade| upgrade.to_string());
    let begins = "upgrade from north (15.14) to south (18.1): ";
    let says = |statuses: &[Option<Status>]| {
        let told = told(statuses).expect("the versions differ");
        told.strip_prefix(begins).expect("it names both").to_owned()
    };
    assert_eq!(says(&both(PRIMARY, STANDBY)), "not switched over yet");
    assert_eq!(says(&both(STANDBY, PRIMARY)), "the way back is open");
    let mut closed = both(recovering(Why::Diverged), PRIMARY);
    closed[0].as_mut().expect("it answers").difference = Some("MERGE".to_owned());
    assert_eq!(says(&closed), "the way back is closed: MERGE");
    let json = serde_json::to_value(upgrade(&closed)).expect("it is written");
    assert_eq!(
        (&json["state"], &json["why"], &json["from"]["version"]),
        (&"way_back_closed".into(), &"MERGE".into(), &"15.14".into())
    );
    let mut unknown = both(STANDBY, PRIMARY);
    unknown[0] = None;
    assert_eq!(told(&unknown), None);
}

#[test]
fn an_upgrade_is_finished_only_if_the_newer_member_is_primary() {
    let sides = (side("north", "15.14"), side("south", "18.1"));
    assert_eq!(finish(&both(STANDBY, PRIMARY)), Ok(sides.clone()));
    // Whether or not the old one follows.
    let lost = both(recovering(Why::NoMember), PRIMARY);
    assert_eq!(finish(&lost), Ok(sides.clone()));
    for roles in [(PRIMARY, STANDBY), (recovering(Why::Starting), STANDBY)] {
        let refusal = finish(&both(roles.0, roles.1)).expect_err("it is refused");
        assert_eq!(refusal, Refusal::NotSwitchedOver(sides.1.clone()));
    }
}

/// The target of a connection string.
fn target(text: &str) -> crate::driver::target::Target {
    let tls = proxy::config::ServerTls::default();
    crate::driver::target::Target::parse(text, &tls).expect("valid")
}

fn has(lines: &[String], wanted: &str) -> bool {
    lines.iter().any(|line| line.contains(wanted))
}

#[test]
fn lines_name_the_member_that_is_replaced() {
    let target = target("host=10.0.0.2 port=5433 user=admin password=x dbname=app");
    let lines = replacement(&side("north", "15.14"), &side("south", "18.1"), &target);
    for wanted in [
        "10.0.0.2, port 5433",
        "OLD=15",
        "NEW=18",
        "set port 5433",
        "'admin'",
    ] {
        assert!(has(&lines, wanted), "{wanted}: {lines:#?}");
    }
    let lines = newer_member(&side("south", "17.2"), &target);
    assert!(has(&lines, "OLD=17") && has(&lines, "the new major version"));
    assert!(has(&second_member(), "other_member"));
}

/// `systemctl disable` does not keep Debian from starting a server at boot: both had one port, and the wrong one could win.
#[test]
fn the_old_server_is_not_started_at_boot_and_the_managers_are() {
    let target = target("host=10.0.0.2 user=postgres dbname=app");
    let lines = newer_member(&side("south", "17.2"), &target);
    assert!(!has(&lines, "systemctl disable"), "{lines:#?}");
    let line = |wanted: &str| lines.iter().position(|line| line.starts_with(wanted));
    let manual = line("echo manual > /etc/postgresql/$OLD/main/start.conf");
    let (reload, stop) = (
        line("systemctl daemon-reload"),
        line("systemctl stop postgresql@$OLD"),
    );
    assert!(
        manual.is_some() && manual < reload && reload < stop,
        "{lines:#?}"
    );
    assert!(has(
        &second_member(),
        "systemctl enable --now understudy-mirror@app"
    ));
    assert!(!has(&second_member(), "understudy mirror run"));
}

/// The lines set the password of a role that an empty server does not have.
#[test]
fn an_empty_server_gets_the_role_before_its_rules_for_logins() {
    let lines = |text: &str| newer_member(&side("south", "17.2"), &target(text));
    let role = |lines: &[String]| lines.iter().position(|line| line.starts_with("runuser"));
    let admin = lines(
        "host=b user='o''neil' password=x dbname=app"
            .replace("''", r"\'")
            .as_str(),
    );
    let creates = r"createuser -p 5432 --superuser --pwprompt 'o'\''neil'";
    assert!(has(&admin, creates), "{admin:#?}");
    let rules = admin.iter().position(|line| line.starts_with("cp -p"));
    assert!(role(&admin) < rules, "{admin:#?}");
    assert!(has(
        &lines("host=b user=admin dbname=app"),
        "--superuser 'admin'"
    ));
    let own = lines("host=b user=postgres password=x dbname=app");
    assert!(has(&own, r"-c '\password postgres'"), "{own:#?}");
    assert_eq!(role(&lines("host=b user=postgres dbname=app")), None);
}
