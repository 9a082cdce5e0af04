//! Deliberate breakage: one rule switched off, which the checkers must notice. Built for tests only.

/// A rule of the standby view, of seals or of the takeover that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Rule 5: the standby is given log that is not synced.
    PastTheLimit,
    /// Rule 2: the base moves before redo has applied all that it can reflect.
    MovedTooEarly,
    /// Rule 1, N4: the standby's database restarts on the overlay and control file that are there.
    RestartedInPlace,
    /// Rule 3, H1: a block is stamped with its page's LSN.
    StampedByPage,
    /// Rule 3, H2: what is made is stamped with what feedback says that redo has applied.
    StampedByFeedback,
    /// Rule 3, H2: a move drops what the end of the new base covers.
    DroppedByEnd,
    // hazard: N2
    /// N2: a checkpoint seals though a bulk writer's pages are not written.
    BulkIgnored,
    /// N2: the same, and a move drops blocks that the new base has no version of.
    DroppedWithoutVersion,
    /// N8: a move takes names away that redo has not removed.
    NamesTaken,
    // hazard: PAGE-6
    /// N8: a move takes the tail away that a rollback removed, of a file that redo made or made longer.
    OwnTailsTaken,
    // hazard: PAGE-7
    /// Rule 2: redo counts as at rest at the end of the log that was shown when it last told where it is.
    RestByFeedback,
    // hazard: PAGE-8
    /// A new active takes the overlay's blocks out before the storage has them.
    TakenBeforeWritten,
    /// N8: a whiteout goes, and the cut before it, although the new base still has the file. (Without the
    /// whiteout alone, an empty file would come back.)
    WhiteoutsDropped,
    /// N8: a cut goes although the new base still has the tail of the removed file.
    CutsDropped,
    /// Rule 7: other forks of unlogged relations are shown.
    UnloggedShown,
    /// N6: a takeover leaves the names that the dead active made or removed.
    LatestNamesLeft,
    /// N6: a takeover leaves the sizes and inodes that the dead active made.
    LatestSizesLeft,
    /// H4: a takeover does not publish the standby's control file with the switch.
    ControlNotPublished,
    /// Section 3: a seal is stated before what it covers is synced.
    SealedBeforeSync,
    /// N10: W is read before the cut.
    EndBeforeCut,
    /// A move leaves in the cache what an earlier one kept of a block that goes now.
    KeptFromEarlier,
    /// A standby that slept passes on what the storage says although its claim was given up.
    AnswersAfterSleep,
    /// H2, H3: a standby reads the latest version of a block, not the sealed one.
    LatestInsteadOfSealed,
    // hazard: ORDER-1
    /// Ordered log: commits are confirmed, and standbys shown the log, by what was answered.
    ConfirmedEarly,
    // hazard: ORDER-1
    /// Ordered log: by the sync that was done last, though an earlier one is not.
    ConfirmedOutOfOrder,
    // hazard: ORDER-2
    /// Ordered log: a seal is stated before its log is durable.
    SealedBeforeItsLog,
    // hazard: ORDER-2
    /// Ordered log: W is what is durable at the cut, and pages of the image reflect more.
    EndOfTheDurable,
    /// Of the log of a timeline all is shown, also what a dead active wrote behind its fork.
    DeadLogShown,
    // hazard: WAL-2
    /// A timeline is shown although the log before its fork is not.
    TimelineBeforeItsLog,
    // hazard: PAST-3
    /// The reclaimer does not look at pins.
    PinsIgnored,
    // hazard: PAST-2
    /// A pin stands although its seal was not looked for after it was put.
    PinUnchecked,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 31] = [
        Flaw::PastTheLimit,
        Flaw::MovedTooEarly,
        Flaw::RestartedInPlace,
        Flaw::StampedByPage,
        Flaw::StampedByFeedback,
        Flaw::DroppedByEnd,
        Flaw::BulkIgnored,
        Flaw::DroppedWithoutVersion,
        Flaw::NamesTaken,
        Flaw::OwnTailsTaken,
        Flaw::RestByFeedback,
        Flaw::TakenBeforeWritten,
        Flaw::WhiteoutsDropped,
        Flaw::CutsDropped,
        Flaw::UnloggedShown,
        Flaw::LatestNamesLeft,
        Flaw::LatestSizesLeft,
        Flaw::ControlNotPublished,
        Flaw::SealedBeforeSync,
        Flaw::EndBeforeCut,
        Flaw::KeptFromEarlier,
        Flaw::AnswersAfterSleep,
        Flaw::LatestInsteadOfSealed,
        Flaw::ConfirmedEarly,
        Flaw::ConfirmedOutOfOrder,
        Flaw::SealedBeforeItsLog,
        Flaw::EndOfTheDurable,
        Flaw::DeadLogShown,
        Flaw::TimelineBeforeItsLog,
        Flaw::PinsIgnored,
        Flaw::PinUnchecked,
    ];
}

/// What is wrong with a state of the view.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Distortion {
    pub flaw: Option<Flaw>,
    /// The stamp of what is made now, in place of the upper bound.
    pub stamp: Option<crate::lsn::Lsn>,
}
