//! Sources and sinks: their contracts, and the formats of files.
//!
//! A [`source::Source`] is one partition of a stream's input: rows with offsets in columnar
//! batches, and bad rows apart from them. A [`sink::Sink`] takes the rows of finished epochs. This
//! crate knows formats and the disk (through `tidemill_env`), but neither tables nor transactions.
//!
//! Each type is written and read in the same form. In brackets are further forms that Parquet files
//! of other programs may have:
//!
//! | type | CSV | JSON | Parquet |
//! | --- | --- | --- | --- |
//! | int | digits | a number without fraction (`1.0` and `1e3` are integers) | 64 bits (any integer) |
//! | float | digits, exponent, `NaN`, `inf`, `-inf` | a number, or one of those three as a string | 64 bits (32, any integer) |
//! | bool | `true`, `false`, `1`, `0` in any case | `true`, `false` | boolean |
//! | str | the text | a string | string |
//! | bytes | `0x` and two hexadecimal digits a byte | a string of the same | binary (of fixed length) |
//! | timestamp | ISO 8601; without an offset it is UTC | the same, or microseconds as an integer | microseconds in UTC (any unit; a date; integers and strings as in JSON) |
//! | decimal | digits, never rounded | a number by its text, or a string | decimal of 19 digits (any decimal or integer, never rounded; a string) |
//! | list | a JSON array | an array | list |
//! | any | JSON | any value | binary, as msgpack (a string, as JSON) |
//!
//! JSON becomes msgpack in an `any` column: integers in the shortest form, all other numbers as
//! 64-bit floats, keys in their order. The way back is for people, and not lossless: times and
//! decimals become their text, and bytes and other extensions `0x…` strings. Keys that are not
//! strings become their text, or `0x…` if that text has escapes.

mod checksum;
mod csv;
pub mod files;
mod growing;
mod input;
mod json;
mod jsonl;
pub mod message;
mod msgpack;
mod parquet;
pub mod push;
mod reader;
mod records;
mod row;
pub mod settings;
pub mod sink;
pub mod source;
mod text;
mod time;
mod trouble;
pub mod values;

pub use checksum::Checksum;
pub use files::{FileFormat, FilesSettings};
pub use message::{Message, MessageFormat, MessageRows, MessageSettings, MessageValues};
pub use push::{push, PushHandle, PushSource};
pub use records::Unclosed;
pub use sink::{FileEnd, Sink, SinkPlace, SinkSettings};
pub use source::{BadRow, Chunk, Place, Polled, Source, Waker};
pub use trouble::Troubles;
