//! What operators expect, as short stories.

use super::*;

fn node() -> Machine {
    Machine::new(name("me"), Tags::default(), Limits::default())
}

/// A node that became a warm standby of a healthy active.
fn standby() -> Machine {
    let mut m = node();
    m.on(Event::Leader(other(Health::Alive)), SECOND);
    m.on(Event::Attached, SECOND);
    m.on(Event::CaughtUp, SECOND);
    assert_eq!(m.state(), State::Standby);
    m
}

fn finish_takeover(m: &mut Machine, now: Duration) {
    m.on(Event::EpochOwned(Epoch(2)), now);
    for phase in [Phase::LogTail, Phase::Replay, Phase::Promote] {
        m.on(Event::PhaseDone(phase), now);
    }
    assert_eq!(m.state(), State::Active);
}

fn active() -> Machine {
    let mut m = standby();
    m.on(Event::Leader(suspect()), 2 * SECOND);
    finish_takeover(&mut m, 2 * SECOND);
    m.on(Event::Leader(Leader::Me), 2 * SECOND);
    m
}

#[test]
fn the_first_start_of_a_volume() {
    let mut m = node();
    assert!(m.on(Event::Leader(Leader::Unknown), SECOND).is_empty());
    let effects = m.on(Event::Leader(Leader::Never), SECOND);
    assert_eq!(effects, [Effect::Attach(SealChoice::Last)]);
    assert_eq!(m.on(Event::Attached, SECOND), [Effect::Run(Phase::Fence)]);
    let effects = m.on(Event::EpochOwned(Epoch(2)), SECOND);
    assert_eq!(
        effects,
        [
            Effect::Beat(ActiveState::TakingOver),
            Effect::Run(Phase::LogTail)
        ]
    );
    m.on(Event::PhaseDone(Phase::LogTail), SECOND);
    m.on(Event::PhaseDone(Phase::Replay), SECOND);
    let effects = m.on(Event::PhaseDone(Phase::Promote), SECOND);
    assert_eq!(
        effects,
        [
            Effect::Beat(ActiveState::Serving),
            Effect::Record(Cause::Started)
        ]
    );
    assert_eq!((m.state(), m.epoch()), (State::Active, Some(Epoch(2))));
}

#[test]
fn a_suspected_active_is_followed_at_once_and_the_evidence_recorded() {
    let mut m = standby();
    assert_eq!(
        m.on(Event::Leader(suspect()), SECOND),
        [Effect::Run(Phase::Fence)]
    );
    m.on(Event::EpochOwned(Epoch(2)), SECOND);
    m.on(Event::PhaseDone(Phase::LogTail), SECOND);
    m.on(Event::PhaseDone(Phase::Replay), SECOND);
    let effects = m.on(Event::PhaseDone(Phase::Promote), SECOND);
    let recorded = effects.iter().any(
        |e| matches!(e, Effect::Record(Cause::Failover { evidence }) if evidence.contains("agent")),
    );
    assert!(recorded, "{effects:?}");
}

#[test]
fn neither_a_healthy_nor_an_unclear_active_is_followed() {
    for health in [Health::Alive, Health::Unclear] {
        let mut m = standby();
        assert!(m.on(Event::Leader(other(health)), 99 * SECOND).is_empty());
        assert_eq!(m.state(), State::Standby);
    }
}

#[test]
fn the_loser_of_a_race_goes_on_as_what_it_was() {
    let mut m = standby();
    m.on(Event::Leader(suspect()), SECOND);
    assert!(m.on(Event::EpochLost, SECOND).is_empty());
    assert_eq!((m.state(), m.epoch()), (State::Standby, None));
    // Old news of the dead active must not start it again; new news may.
    assert!(m.on(Event::Tick, 9 * SECOND).is_empty());
    m.on(Event::Leader(other(Health::Alive)), 9 * SECOND);
    assert_eq!(m.state(), State::Standby);
}

#[test]
fn better_candidates_get_a_head_start_but_not_for_ever() {
    let mut m = standby();
    m.on(Event::Better(1), SECOND);
    assert!(m.on(Event::Leader(suspect()), SECOND).is_empty());
    assert!(
        m.on(Event::Tick, SECOND + Limits::default().stagger / 2)
            .is_empty()
    );
    let effects = m.on(Event::Tick, SECOND + Limits::default().stagger);
    assert_eq!(effects, [Effect::Run(Phase::Fence)]);
}

#[test]
fn nofailover_means_never() {
    let mut m = standby();
    m.tags.nofailover = true;
    assert!(m.on(Event::Leader(suspect()), SECOND).is_empty());
    assert!(m.on(Event::Tick, 999 * SECOND).is_empty());
    let request = Event::FailoverRequested {
        to: None,
        force: true,
    };
    let effects = m.on(request, 999 * SECOND);
    assert!(matches!(&effects[..], [Effect::Reply(Err(why))] if why.contains("nofailover")));
}

#[test]
fn a_fenced_active_stops_at_once_and_comes_back_as_standby() {
    let mut m = active();
    assert_eq!(
        m.on(Event::Fenced, SECOND),
        [Effect::StopPostgres(StopMode::Immediate)]
    );
    assert_eq!((m.state(), m.epoch()), (State::Fenced, None));
    let effects = m.on(exited(false, false), SECOND);
    assert_eq!(effects, [Effect::Drop, Effect::Attach(SealChoice::Last)]);
    m.on(Event::Leader(other(Health::Alive)), SECOND);
    m.on(Event::Attached, SECOND);
    m.on(Event::CaughtUp, SECOND);
    assert_eq!(m.state(), State::Standby);
}

#[test]
fn a_store_outage_alone_demotes_nobody() {
    let mut m = active();
    m.on(Event::StoreLost, SECOND);
    assert_eq!(m.state(), State::Stalled);
    m.on(Event::Tick, 9999 * SECOND);
    m.on(Event::StoreBack, 9999 * SECOND);
    assert_eq!((m.state(), m.epoch()), (State::Active, Some(Epoch(2))));
    m.on(Event::StoreLost, 9999 * SECOND);
    m.on(Event::Fenced, 9999 * SECOND);
    assert_eq!(m.state(), State::Fenced);
}

#[test]
fn postgres_dies_on_the_active_without_a_standby() {
    let mut m = active();
    let effects = m.on(exited(false, false), 10 * SECOND);
    assert!(effects.contains(&Effect::Announce(ActiveState::PostgresDead)));
    assert_eq!(effects.last(), Some(&Effect::Attach(SealChoice::Last)));
    m.on(Event::Leader(Leader::OwnPast), 10 * SECOND);
    assert_eq!(
        m.on(Event::Attached, 11 * SECOND),
        [Effect::Run(Phase::Fence)]
    );
}

#[test]
fn postgres_dies_on_the_active_and_the_standby_is_let_go_first() {
    let mut m = active();
    m.on(Event::WarmStandbys(1), 10 * SECOND);
    m.on(exited(false, false), 10 * SECOND);
    m.on(Event::Leader(Leader::OwnPast), 10 * SECOND);
    assert!(m.on(Event::Attached, 11 * SECOND).is_empty());
    // The standby does not come: this node helps itself.
    assert_eq!(m.on(Event::Tick, 15 * SECOND), [Effect::Run(Phase::Fence)]);
}

#[test]
fn a_standby_says_vacant_and_is_followed_at_once() {
    for leader in [
        other(Health::Vacant { to: None }),
        other(Health::Vacant {
            to: Some(name("me")),
        }),
    ] {
        let mut m = standby();
        m.on(
            Event::Better(u8::from(leader != other(Health::Vacant { to: None }))),
            SECOND,
        );
        assert_eq!(
            m.on(Event::Leader(leader), SECOND),
            [Effect::Run(Phase::Fence)]
        );
    }
    // Somebody else was asked: that one goes first, for a bounded time.
    let mut m = standby();
    let leader = other(Health::Vacant {
        to: Some(name("third")),
    });
    assert!(m.on(Event::Leader(leader), SECOND).is_empty());
    let late = SECOND + Limits::default().handover_wait;
    assert_eq!(m.on(Event::Tick, late), [Effect::Run(Phase::Fence)]);
}

#[test]
fn a_switchover_stops_cleanly_and_names_the_successor() {
    let mut m = active();
    let request = || Event::FailoverRequested {
        to: Some(name("b")),
        force: false,
    };
    let refused = m.on(request(), SECOND);
    assert!(
        matches!(&refused[..], [Effect::Reply(Err(_))]),
        "no standby is warm"
    );
    m.on(Event::WarmStandbys(1), SECOND);
    let effects = m.on(request(), SECOND);
    assert_eq!(
        effects,
        [Effect::Reply(Ok(())), Effect::StopPostgres(StopMode::Fast)]
    );
    let effects = m.on(exited(true, false), SECOND);
    let released = ActiveState::Released {
        to: Some(name("b")),
    };
    assert!(effects.contains(&Effect::LastBeat(released.clone())));
    assert!(effects.contains(&Effect::Announce(released)));
    // It does not snatch its own epoch back while the successor is on its way.
    m.on(Event::Leader(Leader::OwnPast), SECOND);
    assert!(m.on(Event::Attached, 2 * SECOND).is_empty());
}

#[test]
fn an_operator_can_have_a_standby_take_over() {
    let mut m = standby();
    let ask = |to: Option<&str>, force| Event::FailoverRequested {
        to: to.map(name),
        force,
    };
    let refused = m.on(ask(Some("b"), false), SECOND);
    assert!(matches!(&refused[..], [Effect::Reply(Err(why))] if why.contains("ask b")));
    let effects = m.on(ask(Some("me"), false), SECOND);
    assert_eq!(effects, [Effect::Reply(Ok(())), Effect::Run(Phase::Fence)]);
    m.on(Event::EpochLost, SECOND);
    m.on(Event::FellBehind, SECOND);
    let refused = m.on(ask(None, false), SECOND);
    assert!(matches!(&refused[..], [Effect::Reply(Err(why))] if why.contains("catching up")));
    m.on(ask(None, true), SECOND);
    assert_eq!(m.state(), State::TakingOver(Phase::Fence));
}

#[test]
fn a_standby_whose_postgres_dies_attaches_afresh_with_growing_waits() {
    let mut m = standby();
    let mut now = 10 * SECOND;
    let mut waits = Vec::new();
    for _ in 0..9 {
        let died = now;
        let mut effects = m.on(exited(false, false), now);
        assert_eq!(effects[0], Effect::Drop);
        while !effects.iter().any(|e| matches!(e, Effect::Attach(_))) {
            now += Duration::from_millis(250);
            effects = m.on(Event::Tick, now);
        }
        waits.push(now - died);
    }
    assert_eq!(waits[0], Duration::ZERO);
    assert!(
        waits.windows(2).all(|w| w[0] <= w[1]) && waits[8] == 30 * SECOND,
        "{waits:?}"
    );
    m.on(Event::Attached, now);
    m.on(Event::CaughtUp, now);
    let effects = m.on(exited(false, false), now);
    assert_eq!(effects, [Effect::Drop, Effect::Attach(SealChoice::Last)]);
}

#[test]
fn repeated_redo_failures_lead_to_the_seal_before_with_an_alarm() {
    let mut m = standby();
    let effects = m.on(exited(false, true), SECOND);
    assert_eq!(effects, [Effect::Drop, Effect::Attach(SealChoice::Last)]);
    m.on(Event::Attached, SECOND);
    let effects = m.on(exited(false, true), SECOND);
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Alarm(why) if why.contains("one before")))
    );
    let effects = m.on(Event::Tick, 9 * SECOND);
    assert_eq!(effects, [Effect::Attach(SealChoice::BeforeLast)]);
    m.on(Event::Attached, 9 * SECOND);
    m.on(Event::CaughtUp, 9 * SECOND);
    assert_eq!(m.seal_choice(), SealChoice::Last);
}

#[test]
fn a_failed_takeover_is_told_and_begun_again_from_the_start() {
    let mut m = standby();
    m.on(Event::Leader(suspect()), SECOND);
    m.on(Event::EpochOwned(Epoch(2)), SECOND);
    let failed = Event::PhaseFailed {
        phase: Phase::LogTail,
        reason: "x".into(),
    };
    let effects = m.on(failed, SECOND);
    assert!(effects.contains(&Effect::LastBeat(ActiveState::PostgresDead)));
    assert_eq!(
        effects.last(),
        Some(&Effect::StopPostgres(StopMode::Immediate))
    );
    let effects = m.on(exited(false, false), SECOND);
    assert_eq!(effects, [Effect::Drop, Effect::Attach(SealChoice::Last)]);
}

#[test]
fn a_spare_waits_until_it_is_needed() {
    let mut m = node();
    m.tags.spare = true;
    m.on(Event::Leader(other(Health::Alive)), SECOND);
    assert_eq!(m.state(), State::Spare);
    let effects = m.on(Event::Enlist, SECOND);
    assert_eq!(
        effects,
        [Effect::Reply(Ok(())), Effect::Attach(SealChoice::Last)]
    );

    let mut m = node();
    m.tags.spare = true;
    m.on(Event::Leader(suspect()), SECOND);
    assert_eq!(m.state(), State::Spare);
    m.on(Event::Tick, SECOND + Limits::default().spare_wait);
    assert_eq!(m.state(), State::Attaching);
}

#[test]
fn stopping_the_active_releases_the_epoch() {
    let mut m = active();
    assert_eq!(
        m.on(Event::Stop, SECOND),
        [Effect::StopPostgres(StopMode::Fast)]
    );
    let effects = m.on(exited(true, false), SECOND);
    let released = ActiveState::Released { to: None };
    assert_eq!(
        effects,
        [
            Effect::Announce(released.clone()),
            Effect::LastBeat(released),
            Effect::Drop,
            Effect::Exit
        ]
    );
    let mut m = standby();
    assert_eq!(
        m.on(Event::Stop, SECOND),
        [Effect::StopPostgres(StopMode::Immediate)]
    );
    assert_eq!(
        m.on(exited(false, false), SECOND),
        [Effect::Drop, Effect::Exit]
    );
}
