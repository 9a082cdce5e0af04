//! Rules that the simulation can switch off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    // hazard: PROXY-1
    /// A transaction is asked about although its id may be another's by now.
    NoHorizon,
    // hazard: PROXY-1
    /// The last takeover's horizon counts.
    LastHorizon,
    // hazard: PROXY-11
    /// A server is that of the epoch which the proxy knew when it connected.
    EpochBelieved,
    // hazard: PROXY-12
    /// Nobody is active in an epoch that the proxy has not heard of.
    NewsBelieved,
    // hazard: PROXY-14
    /// A replay may have other answers.
    AnswersNotCompared,
    // hazard: PROXY-2
    /// A commit in doubt is taken for one that did not happen.
    DoubtMeansNo,
    // hazard: PROXY-2
    /// A commit in doubt is taken for one that did.
    DoubtMeansYes,
    /// A session does not remember that it was on the active.
    OwnWritesForgotten,
    // hazard: PROXY-50
    /// A session does not remember what it did on a server that it loses.
    LossForgets,
    // hazard: PROXY-37
    /// Any standby is as good as the one that the session read on last.
    AnyStandby,
    /// A read does not wait for its version.
    VersionIgnored,
    // hazard: PROXY-18
    /// A standby that was started again still has what it had.
    RestartIgnored,
    // hazard: PROXY-40
    /// A new server is not given the session's settings.
    SettingsForgotten,
    // hazard: PROXY-15
    /// A position counts without proof that the epoch stood.
    #[cfg(test)]
    UnprovenPosition,
    // hazard: PROXY-17
    /// A read is given a position that somebody else has asked for before.
    #[cfg(test)]
    EarlyPosition,
    // hazard: PROXY-16
    /// The active is taken to show whatever is durable.
    DurableIsShown,
    // hazard: PROXY-20
    /// What a standby says of a statement that it cannot run is told to the client.
    StandbysWordTold,
    // hazard: PROXY-56
    /// A session ends when a standby ends its connection.
    StandbysEndTold,
    // hazard: PROXY-20
    /// A function writes only if the catalog said so when it was read.
    CatalogBelieved,
    // hazard: PROXY-65
    /// A statement writes only if it says so, or calls a function by its name.
    NamesBelieved,
    // hazard: PROXY-72
    /// What a function does to its session is not asked.
    StateNotAsked,
    // hazard: PROXY-21
    /// What calls a function that may write proves by that that its server is active.
    CallsAreProof,
    /// A transaction is begun again where it was interrupted, without what it did before.
    ReplayForgotten,
    // hazard: PROXY-3
    /// A transaction is taken to end only where none is open afterwards.
    ChainsOverlooked,
    // hazard: PROXY-27
    /// A session leaves for another process although its transaction is open.
    LeavesInTransaction,
    // hazard: PROXY-27
    /// What a session has seen does not go along to another process.
    SeenLeftBehind,
}

#[cfg(test)]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 26] = [
        Flaw::NoHorizon,
        Flaw::LastHorizon,
        Flaw::EpochBelieved,
        Flaw::NewsBelieved,
        Flaw::AnswersNotCompared,
        Flaw::DoubtMeansNo,
        Flaw::DoubtMeansYes,
        Flaw::OwnWritesForgotten,
        Flaw::LossForgets,
        Flaw::AnyStandby,
        Flaw::VersionIgnored,
        Flaw::RestartIgnored,
        Flaw::SettingsForgotten,
        Flaw::UnprovenPosition,
        Flaw::EarlyPosition,
        Flaw::DurableIsShown,
        Flaw::StandbysWordTold,
        Flaw::StandbysEndTold,
        Flaw::CatalogBelieved,
        Flaw::NamesBelieved,
        Flaw::StateNotAsked,
        Flaw::CallsAreProof,
        Flaw::ReplayForgotten,
        Flaw::ChainsOverlooked,
        Flaw::LeavesInTransaction,
        Flaw::SeenLeftBehind,
    ];
}
