//! Rules that the simulation can switch off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A transaction is asked about although its id may be another's by now.
    NoHorizon,
    /// The last takeover's horizon counts.
    LastHorizon,
    /// A server is that of the epoch which the proxy knew when it connected.
    EpochBelieved,
    /// Nobody is active in an epoch that the proxy has not heard of.
    NewsBelieved,
    /// A replay may have other answers.
    AnswersNotCompared,
    /// A commit in doubt is taken for one that did not happen.
    DoubtMeansNo,
    /// A commit in doubt is taken for one that did.
    DoubtMeansYes,
    /// A session does not remember that it was on the active.
    OwnWritesForgotten,
    /// A session does not remember what it did on a server that it loses.
    LossForgets,
    /// Any standby is as good as the one that the session read on last.
    AnyStandby,
    /// A read does not wait for its version.
    VersionIgnored,
    /// A standby that was started again still has what it had.
    RestartIgnored,
    /// A new server is not given the session's settings.
    SettingsForgotten,
    /// A position counts without proof that the epoch stood.
    #[cfg(test)]
    UnprovenPosition,
    /// A read is given a position that somebody else has asked for before.
    #[cfg(test)]
    EarlyPosition,
    /// The active is taken to show whatever is durable.
    DurableIsShown,
    /// What a standby says of a statement that it cannot run is told to the client.
    StandbysWordTold,
    /// A session ends when a standby ends its connection.
    StandbysEndTold,
    /// A function writes only if the catalog said so when it was read.
    CatalogBelieved,
    /// A statement writes only if it says so, or calls a function by its name.
    NamesBelieved,
    /// What a function does to its session is not asked.
    StateNotAsked,
    /// What calls a function that may write proves by that that its server is active.
    CallsAreProof,
    /// A transaction is begun again where it was interrupted, without what it did before.
    ReplayForgotten,
    /// A transaction is taken to end only where none is open afterwards.
    ChainsOverlooked,
    /// A session leaves for another process although its transaction is open.
    LeavesInTransaction,
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
