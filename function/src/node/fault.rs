//! Mistakes that an engine of this kind makes, so that tests can show that they would find each.

/// A mistake to make on purpose. Those of a node are made by the node, the others by who drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The writes of an aborted transaction stay.
    SkipUndo,
    /// A read is answered as the last epoch has left the row.
    StaleRead,
    /// What a re-run has read is not looked at again.
    LoseDependency,
    /// Ranges are not looked at: rows that appear in one are overlooked.
    ForgetRange,
    /// Rows that all nodes have are asked of all nodes but one.
    ForgetNode,
    /// That a row was missing is not looked at.
    ForgetAbsence,
    /// A call does not see what its transaction has written before it.
    ForgetOwnWrites,
    /// A re-run takes cached replies, whatever it asks.
    TrustCachedCalls,
    /// A re-run does not say that it has returned something else.
    TrustCachedReplies,
    /// A transaction counts as ended when half of its shares are back.
    LoseShare,
    /// What has to run again is not told to the others.
    KeepConflicts,
    /// The first failure to come in is the reason, wherever it happened.
    FirstFailure,
    /// A re-run reads as if it came behind all others.
    ChangeStamp,
    /// A node drops what other nodes' transactions have written on it.
    ApplyPartly,
    /// Events of a run that did not count leave too.
    EmitTwice,
    /// The owners of a declared transaction's rows decide each by what it owns.
    DecideAlone,
    /// A transaction sees what others have written before they have ended.
    ReadUnfinished,
    /// Conflicts inside a transaction, between its own calls, are overlooked.
    ForgetBranches,
    /// A row's entry in an index stays when the row changes.
    KeepEntries,
    /// A row gets an entry that another one has.
    ForgetUnique,
    /// A re-run asks outside again what it was told.
    AskAgain,
    /// A transaction aborts because a clock says so, and that is recorded nowhere.
    JudgeEarly,
    /// A row that was asked for before it was used is what it was then.
    TrustAhead,
    /// What a function has read before its calls have taken place is not looked at again.
    TrustDeferred,
    /// Replies leave before their cut is durable.
    ReplyEarly,
    /// After a recovery, replies that have left leave again.
    ReplyAgain,
    /// A request that comes twice is executed twice.
    ExecuteAgain,
    /// A snapshot counts though one of its parts was not stored.
    CountFailedPut,
    /// A snapshot's part says the state of an epoch later than it should.
    SnapshotLate,
    /// A recovery reads requests from one behind the recorded offset on.
    SkipRequest,
    /// A recovery makes cuts of its own instead of the recorded ones.
    CutAnew,
    /// Places are taken for records of the inputs, and not for the requests in them.
    CountRecords,
    /// Of a record of the outputs only the first one is known to have left.
    KnowFirst,
    /// Nobody looks at the generation of what is appended and sent.
    ForgetFence,
    /// A survivor of a failure keeps its rows, though others go back to the snapshot.
    KeepState,
    /// A survivor takes back only what has changed since it took its last part of a snapshot.
    KeepLayers,
    /// A survivor reads no part that it has stored itself, whatever it owned then.
    KeepParts,
    /// Who has read a snapshot before it came in takes a later one for that with more behind it.
    KeepPrepared,
    /// Two members that can't reach each other get into one generation again and again.
    LeaveNobodyOut,
    /// Of an epoch all is said to have left while some of it is still being appended.
    LeftEarly,
    /// Whoever goes on writing what leaves begins behind what was read, whatever of it was not written.
    ForgetWaiting,
    /// Events stand by when they came, and not by their times.
    RankByArrival,
    /// A reader gives places without knowing how many requests of others come before.
    RankAlone,
    /// A reader divides a long epoch by what has come in at it, and not by all.
    PartAlone,
    /// An event is late where it is behind the watermark of its own cut.
    LateByItsCut,
    /// A coordinator that begins a generation does not know what times have come, and makes watermarks of what comes.
    ForgetTimes,
    /// Who reads on behind a snapshot does not know what times have come, by which later events are late.
    ForgetNewest,
    /// A recovery reads on behind the snapshot, whatever was waiting for its watermark.
    ForgetParked,
    /// A recovery takes all events for waiting that it reads again.
    ParkAgain,
    /// What a snapshot's cut has is let go of, be it that events in it wait.
    TrimParked,
    /// A source that has ended is waited for.
    ForgetEnd,
    /// A source that is silent holds the watermark back for ever.
    ForgetIdle,
    /// Where too much waits nothing is read any more that may have to wait, be it what all others wait for.
    PauseAll,
    /// Somebody outside is asked for an epoch whose cut is not durable, and may become another one.
    AskEarly,
    /// A function goes on with an answer that is not durable.
    TellEarly,
    /// A recovery asks outside again what was answered.
    ForgetAnswers,
    /// A recovery says that a transaction takes too long of which something has left.
    JudgeAgain,
    /// Work outside is begun before the cut that asks for it is durable.
    WorkEarly,
    /// A recovery forgets the work outside that the snapshot's rows ask for.
    ForgetWork,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 59] = [
        Fault::SkipUndo,
        Fault::StaleRead,
        Fault::LoseDependency,
        Fault::ForgetRange,
        Fault::ForgetNode,
        Fault::ForgetAbsence,
        Fault::ForgetOwnWrites,
        Fault::TrustCachedCalls,
        Fault::TrustCachedReplies,
        Fault::LoseShare,
        Fault::KeepConflicts,
        Fault::FirstFailure,
        Fault::ChangeStamp,
        Fault::ApplyPartly,
        Fault::EmitTwice,
        Fault::DecideAlone,
        Fault::ReadUnfinished,
        Fault::ForgetBranches,
        Fault::KeepEntries,
        Fault::ForgetUnique,
        Fault::AskAgain,
        Fault::JudgeEarly,
        Fault::TrustAhead,
        Fault::TrustDeferred,
        Fault::ReplyEarly,
        Fault::ReplyAgain,
        Fault::ExecuteAgain,
        Fault::CountFailedPut,
        Fault::SnapshotLate,
        Fault::SkipRequest,
        Fault::CutAnew,
        Fault::CountRecords,
        Fault::KnowFirst,
        Fault::ForgetFence,
        Fault::KeepState,
        Fault::KeepLayers,
        Fault::KeepParts,
        Fault::KeepPrepared,
        Fault::LeaveNobodyOut,
        Fault::LeftEarly,
        Fault::ForgetWaiting,
        Fault::RankByArrival,
        Fault::RankAlone,
        Fault::PartAlone,
        Fault::LateByItsCut,
        Fault::ForgetTimes,
        Fault::ForgetNewest,
        Fault::ForgetParked,
        Fault::ParkAgain,
        Fault::TrimParked,
        Fault::ForgetEnd,
        Fault::ForgetIdle,
        Fault::PauseAll,
        Fault::AskEarly,
        Fault::TellEarly,
        Fault::ForgetAnswers,
        Fault::JudgeAgain,
        Fault::WorkEarly,
        Fault::ForgetWork,
    ];
}
