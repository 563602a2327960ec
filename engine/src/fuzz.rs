//! The decoders of bytes from disks, topics and clients, for fuzzing. Each returns what it has
//! decoded in its encoding.

use std::sync::{Arc, OnceLock};

use tidemill_cluster::wire::put_record;
use tidemill_connect::Message;
use tidemill_core::{Column, DataType, Schema, Value};
use tidemill_kafka::Format;
use tidemill_log::Record;
use tidemill_txn::program::Builder;
use tidemill_txn::Program;

use crate::cluster::messages;
use crate::crash_guard::Note;
use crate::functions::{AppFunctions, Nobody};
use crate::records;
use crate::serve::{Fields, Query};
use crate::settings::Settings;
use crate::spec::AppSpec;
use crate::stored::Stored;

/// Decodes pushed rows of a log.
pub fn rows(schema: &Arc<Schema>, bytes: &[u8]) -> Option<Vec<u8>> {
    let chunk = records::take_rows(schema, bytes).ok()?;
    let (source, next) = records::rows_end(bytes).expect("the rows were decoded");
    assert_eq!(next, chunk.next_offset);
    Some(records::put_rows(source, &chunk))
}

/// Decodes a verdict of a log.
pub fn verdict(bytes: &[u8]) -> Option<Vec<u8>> {
    records::take_verdict(bytes).ok().map(|verdict| records::put_verdict(&verdict))
}

/// Decodes a record of the log of cuts.
pub fn cut(kind: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    let (cut, inputs) = records::cut(&Record { number: 0, kind, bytes: bytes.to_vec() }).ok()?;
    let bytes = records::put_cut_after(inputs.unwrap_or_default(), &cut);
    Some(if inputs.is_some() { bytes } else { bytes[8..].to_vec() })
}

/// Decodes the crash guard's note.
pub fn note(bytes: &[u8]) -> Option<Vec<u8>> {
    Note::decode(bytes).map(Note::encode)
}

/// Decodes the app in a manifest.
pub fn app(bytes: &[u8]) -> Option<Vec<u8>> {
    Stored::parse(bytes).ok().map(|stored| stored.bytes())
}

fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut b = Builder::new("bank");
        let column = |name: &str| Column::new(name, DataType::Int);
        let text = Column::new("owner", DataType::Str).default(Value::str("none"));
        let limit = Column::new("limit", DataType::Decimal(2)).nullable();
        b.table("account", &["id"], vec![column("id"), text.clone(), limit.clone()]);
        let opened = b.stream("opened", vec![column("id"), text, limit]);
        let mut h = b.handler("open", opened);
        let id = h.column("id");
        h.output(&[("id", id)]);
        h.done();
        b.finish().expect("a valid program")
    })
}

/// Decodes a message of a topic of requests.
pub fn message(message: &Message<'_>) -> Vec<u8> {
    static FORMAT: OnceLock<Box<dyn Format>> = OnceLock::new();
    let format = FORMAT.get_or_init(|| {
        let spec = AppSpec::new(program().clone(), Vec::new(), Settings::default());
        let functions = AppFunctions::new(&spec, Arc::new(Nobody)).expect("a valid app");
        Box::new(messages(functions, 7))
    });
    let record = format.requests(message);
    let mut out = Vec::new();
    put_record(&record, &mut out);
    let mut input = &out[..];
    assert_eq!(tidemill_cluster::wire::take_record(&mut input), Some(record));
    out
}

/// Decodes a line of a client at the socket of a running app.
pub fn line(line: &[u8]) {
    let Ok(mut fields) = Fields::parse(line) else { return };
    let Ok(query) = Query::take(&mut fields) else { return };
    // Refusals are texts for the client.
    let _ = fields.done();
    let _ = query.plan(program());
}
