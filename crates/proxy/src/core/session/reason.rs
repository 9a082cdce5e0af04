//! Why a transaction whose server was lost was not run again.

/// The reasons, in the order in which they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A statement had another answer than the first time.
    OtherAnswers,
    /// A statement may have had effects that a rollback does not take back.
    Effects,
    /// A row was passed on in pieces, and is not there to be compared.
    LargeAnswer,
    /// Its statements are longer than `replay_bytes`.
    LongStatements,
    /// It began in one message with the end of another.
    Chained,
    /// Nothing of it was kept.
    NotKept,
    /// Replay is switched off.
    Off,
    /// No server took over, or proved that it is active, in time.
    NoServer,
}

/// All of them.
pub const REASONS: [Reason; 8] = [
    Reason::OtherAnswers,
    Reason::Effects,
    Reason::LargeAnswer,
    Reason::LongStatements,
    Reason::Chained,
    Reason::NotKept,
    Reason::Off,
    Reason::NoServer,
];

impl Reason {
    /// Its name among the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Reason::OtherAnswers => "other_answers",
            Reason::Effects => "effects",
            Reason::LargeAnswer => "large_answer",
            Reason::LongStatements => "long_statements",
            Reason::Chained => "chained",
            Reason::NotKept => "not_kept",
            Reason::Off => "off",
            Reason::NoServer => "no_server",
        }
    }

    /// The rest of a sentence that ends with "because".
    pub fn words(self) -> &'static str {
        match self {
            Reason::OtherAnswers => "its statements had other answers this time",
            Reason::Effects => "a statement may have had effects outside of the transaction",
            Reason::LargeAnswer => "an answer was too large to be compared",
            Reason::LongStatements => "its statements are longer than the proxy keeps",
            Reason::Chained => "it began together with the end of another one",
            Reason::NotKept => "it was not kept",
            Reason::Off => "replay is switched off",
            Reason::NoServer => "no server took over in time",
        }
    }
}
