//! Small dense ids. Names are for people. Inside the engine, everything is an index.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns the id as an index into the program's list of its kind.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A table, by its place in the program's declaration.
    TableId,
    u16
);
id!(
    /// A stream of events (declared, or the output of a handler), by its place in the program.
    StreamId,
    u16
);
id!(
    /// A handler (one transaction per event of its stream), by its place in the declaration.
    HandlerId,
    u16
);
id!(
    /// A source partition: a declared source name plus a log partition, by its place in the
    /// program.
    ///
    /// It is never a connection, a worker or a group. So stamps survive any layout.
    SourceId,
    u32
);
