//! Defects that an engine of this kind could have, injected so that tests can show that they detect
//! each.

/// A defect to inject. The node injects those of a node, and its driver the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectedDefect {
    /// The writes of an aborted transaction stay.
    SkipUndo,
    /// A read returns the row as the last epoch left it.
    StaleRead,
    /// The reads of a re-run are not checked again.
    LoseDependency,
    /// Reads of ranges are not checked, so rows that appear in one are overlooked.
    ForgetRange,
    /// A search over all nodes leaves out one of them.
    ForgetNode,
    /// Reads that found no row are not checked.
    ForgetAbsence,
    /// A call does not see what its transaction has written before it.
    ForgetOwnWrites,
    /// A re-run takes cached replies, whatever it asks.
    TrustCachedCalls,
    /// A re-run does not report that it has returned something else.
    TrustCachedReplies,
    /// A transaction counts as ended when half of its shares are back.
    LoseShare,
    /// A node does not report to the others what must run again.
    KeepConflicts,
    /// The first failure to arrive is the reason, wherever it happened.
    FirstFailure,
    /// A re-run reads as if it were after all others.
    ChangeStamp,
    /// A node drops what other nodes' transactions have written on it.
    ApplyPartly,
    /// Events of a run that did not count leave, too.
    EmitTwice,
    /// Each owner of a declared transaction's rows decides by the rows that it owns.
    DecideAlone,
    /// A transaction sees what others have written before they have ended.
    ReadUnfinished,
    /// Conflicts inside a transaction, between its own calls, are overlooked.
    ForgetBranches,
    /// A row's entry in an index stays when the row changes.
    KeepEntries,
    /// A row gets an entry of a unique index that another row has.
    ForgetUnique,
    /// A re-run asks the outside again for answers that it already has.
    AskAgain,
    /// A transaction aborts because of a clock's verdict that is not recorded.
    JudgeEarly,
    /// The value of a row that was requested ahead is used without confirmation.
    TrustAhead,
    /// Reads of a function before its pending calls have taken place are not checked.
    TrustDeferred,
    /// Replies leave before their cut is durable.
    ReplyEarly,
    /// After a recovery, replies that have left leave again.
    ReplyAgain,
    /// A request that arrives twice is executed twice.
    ExecuteAgain,
    /// A snapshot counts though one of its parts was not stored.
    CountFailedPut,
    /// A part of a snapshot has the state of a later epoch than it should.
    SnapshotLate,
    /// A recovery reads requests from one after the recorded offset.
    SkipRequest,
    /// A recovery makes cuts of its own instead of the recorded ones.
    NewCuts,
    /// Places are counted by records of the inputs, and not by the requests in them.
    CountRecords,
    /// Of a record of the outputs, only the first output is known to have left.
    KnowFirst,
    /// The generation of appended records and sent messages is not checked.
    ForgetFence,
    /// A survivor of a failure keeps its rows, though others go back to the snapshot.
    KeepState,
    /// A survivor undoes only what has changed since it took its last part of a snapshot.
    KeepLayers,
    /// A survivor loads no rows, whatever it owns now.
    KeepParts,
    /// A member that read a snapshot before it joined takes a later one for that one, with more
    /// records after it.
    KeepPrepared,
    /// Two members that can't reach each other get into the same generation again and again.
    LeaveNobodyOut,
    /// All outputs of an epoch are reported as left while some of them are still being appended.
    LeftEarly,
    /// A writer of outputs that takes over begins after what was read, even if some of it was not
    /// written.
    ForgetWaiting,
    /// Events are ordered by their arrival, and not by their times.
    RankByArrival,
    /// A reader assigns places without knowing how many requests of others come before.
    RankAlone,
    /// A reader divides a long epoch by its own events, and not by all.
    PartAlone,
    /// An event is late if it is behind the watermark of its own cut.
    LateByItsCut,
    /// A coordinator that begins a generation does not know the earlier event times, and makes
    /// watermarks of new ones.
    ForgetTimes,
    /// A reader that continues after a snapshot does not know the earlier event times, by which
    /// later events are late.
    ForgetNewest,
    /// A recovery reads on after the snapshot, and loses the buffered events.
    ForgetBuffered,
    /// A recovery buffers all events that it reads again.
    BufferAgain,
    /// The log is trimmed up to a snapshot's cut, even where buffered events are before it.
    TrimBuffered,
    /// The watermark waits for a source that has ended.
    ForgetEnd,
    /// A silent source holds the watermark back forever.
    ForgetIdle,
    /// When too much is buffered, nothing is read that may have to be buffered, even what all
    /// others wait for.
    PauseAll,
    /// The outside is asked for an epoch whose cut is not durable and may still change.
    AskEarly,
    /// A function continues with an answer that is not durable.
    TellEarly,
    /// A recovery asks the outside again for recorded answers.
    ForgetAnswers,
    /// A recovery decides that a transaction takes too long though its output has left.
    JudgeAgain,
    /// Work outside begins before the cut that asks for it is durable.
    WorkEarly,
    /// A recovery forgets the work outside that the snapshot's rows ask for.
    ForgetWork,
}

impl InjectedDefect {
    /// All of them.
    pub const ALL: [InjectedDefect; 59] = [
        InjectedDefect::SkipUndo,
        InjectedDefect::StaleRead,
        InjectedDefect::LoseDependency,
        InjectedDefect::ForgetRange,
        InjectedDefect::ForgetNode,
        InjectedDefect::ForgetAbsence,
        InjectedDefect::ForgetOwnWrites,
        InjectedDefect::TrustCachedCalls,
        InjectedDefect::TrustCachedReplies,
        InjectedDefect::LoseShare,
        InjectedDefect::KeepConflicts,
        InjectedDefect::FirstFailure,
        InjectedDefect::ChangeStamp,
        InjectedDefect::ApplyPartly,
        InjectedDefect::EmitTwice,
        InjectedDefect::DecideAlone,
        InjectedDefect::ReadUnfinished,
        InjectedDefect::ForgetBranches,
        InjectedDefect::KeepEntries,
        InjectedDefect::ForgetUnique,
        InjectedDefect::AskAgain,
        InjectedDefect::JudgeEarly,
        InjectedDefect::TrustAhead,
        InjectedDefect::TrustDeferred,
        InjectedDefect::ReplyEarly,
        InjectedDefect::ReplyAgain,
        InjectedDefect::ExecuteAgain,
        InjectedDefect::CountFailedPut,
        InjectedDefect::SnapshotLate,
        InjectedDefect::SkipRequest,
        InjectedDefect::NewCuts,
        InjectedDefect::CountRecords,
        InjectedDefect::KnowFirst,
        InjectedDefect::ForgetFence,
        InjectedDefect::KeepState,
        InjectedDefect::KeepLayers,
        InjectedDefect::KeepParts,
        InjectedDefect::KeepPrepared,
        InjectedDefect::LeaveNobodyOut,
        InjectedDefect::LeftEarly,
        InjectedDefect::ForgetWaiting,
        InjectedDefect::RankByArrival,
        InjectedDefect::RankAlone,
        InjectedDefect::PartAlone,
        InjectedDefect::LateByItsCut,
        InjectedDefect::ForgetTimes,
        InjectedDefect::ForgetNewest,
        InjectedDefect::ForgetBuffered,
        InjectedDefect::BufferAgain,
        InjectedDefect::TrimBuffered,
        InjectedDefect::ForgetEnd,
        InjectedDefect::ForgetIdle,
        InjectedDefect::PauseAll,
        InjectedDefect::AskEarly,
        InjectedDefect::TellEarly,
        InjectedDefect::ForgetAnswers,
        InjectedDefect::JudgeAgain,
        InjectedDefect::WorkEarly,
        InjectedDefect::ForgetWork,
    ];
}
