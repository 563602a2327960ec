//! The ends of CSV records and fields.
//!
//! The `csv` crate doesn't distinguish a quoted empty field from an unquoted one, has no bound on a
//! record, and doesn't report a quote that was left open. So this splitter is our own, and that
//! crate is the oracle of its tests.

use crate::records::Split;

/// The delimiter and the quote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    /// The quote. `None`: quotes are ordinary characters.
    pub quote: Option<u8>,
}

/// The way a field was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quoting {
    Plain,
    Quoted,
    /// Quoted, with doubled quotes inside.
    Escaped,
    /// Quoted, with more text after the closing quote.
    Broken,
}

/// A field's place in its record, without its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub start: u32,
    pub end: u32,
    pub quoting: Quoting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote in a quoted field. It is the closing quote, or the first of two.
    QuoteSeen,
    /// After a carriage return that follows the closing quote.
    ReturnSeen,
}

/// Finds the ends of CSV fields and records. Records end with `\n` or `\r\n`; a quoted field may
/// hold either.
pub(crate) struct CsvSplit {
    dialect: Dialect,
    state: State,
    scanned: usize,
    field: Field,
    pub fields: Vec<Field>,
    /// The index of the first field with text after its closing quote.
    pub broken: Option<usize>,
    newlines: u64,
    /// Whether the record's beginning was dropped. Then fields have no places.
    dropped: bool,
}

impl CsvSplit {
    pub fn new(dialect: Dialect) -> CsvSplit {
        CsvSplit {
            dialect,
            state: State::FieldStart,
            scanned: 0,
            field: Field { start: 0, end: 0, quoting: Quoting::Plain },
            fields: Vec::new(),
            broken: None,
            newlines: 0,
            dropped: false,
        }
    }

    fn end_field(&mut self) {
        if self.dropped {
            return;
        }
        if self.field.quoting == Quoting::Broken && self.broken.is_none() {
            self.broken = Some(self.fields.len());
        }
        self.fields.push(self.field);
    }

    /// Ends the last field of a record, which ends at `end`. The next record begins at `next`.
    fn end_record(&mut self, data: &[u8], end: usize, next: usize) -> Option<usize> {
        if self.state == State::Plain || self.state == State::FieldStart {
            let start = self.field.start as usize;
            let text = data.get(start..end).unwrap_or_default();
            self.field.end = (end - usize::from(text.last() == Some(&b'\r'))) as u32;
        }
        self.end_field();
        self.scanned = next;
        Some(next)
    }
}

impl Split for CsvSplit {
    fn scan(&mut self, data: &[u8], last: bool) -> Option<usize> {
        let Dialect { delimiter, quote } = self.dialect;
        // If there is no quote, this never equals a byte.
        let quote = quote.map_or(u32::MAX, u32::from);
        let mut at = self.scanned;
        while at < data.len() {
            match self.state {
                State::FieldStart => {
                    if u32::from(data[at]) == quote {
                        at += 1;
                        self.state = State::Quoted;
                        self.field.quoting = Quoting::Quoted;
                    } else {
                        self.state = State::Plain;
                        self.field.quoting = Quoting::Plain;
                    }
                    self.field.start = at as u32;
                }
                State::Plain => {
                    let ends = |b: &u8| *b == delimiter || *b == b'\n';
                    let Some(length) = data[at..].iter().position(ends) else {
                        at = data.len();
                        break;
                    };
                    at += length;
                    if data[at] == b'\n' {
                        return self.end_record(data, at, at + 1);
                    }
                    self.field.end = at as u32;
                    self.end_field();
                    self.state = State::FieldStart;
                    at += 1;
                }
                State::Quoted => {
                    while at < data.len() && u32::from(data[at]) != quote {
                        self.newlines += u64::from(data[at] == b'\n');
                        at += 1;
                    }
                    if at < data.len() {
                        self.field.end = at as u32;
                        self.state = State::QuoteSeen;
                        at += 1;
                    }
                }
                State::QuoteSeen => match data[at] {
                    byte if u32::from(byte) == quote => {
                        self.field.quoting = Quoting::Escaped;
                        self.state = State::Quoted;
                        at += 1;
                    }
                    byte if byte == delimiter => {
                        self.end_field();
                        self.state = State::FieldStart;
                        at += 1;
                    }
                    b'\n' => return self.end_record(data, at, at + 1),
                    b'\r' => {
                        self.state = State::ReturnSeen;
                        at += 1;
                    }
                    _ => {
                        self.field.quoting = Quoting::Broken;
                        self.state = State::Plain;
                    }
                },
                State::ReturnSeen => {
                    if data[at] == b'\n' {
                        return self.end_record(data, at, at + 1);
                    }
                    self.field.quoting = Quoting::Broken;
                    self.state = State::Plain;
                }
            }
        }
        self.scanned = at;
        if !last {
            return None;
        }
        match self.state {
            State::FieldStart => {
                // An empty field follows the last delimiter.
                self.field = Field { start: at as u32, end: at as u32, quoting: Quoting::Plain };
            }
            State::Quoted => self.field.end = at as u32,
            State::Plain | State::QuoteSeen | State::ReturnSeen => {}
        }
        self.end_record(data, at, at)
    }

    fn reset(&mut self) {
        self.state = State::FieldStart;
        self.scanned = 0;
        self.fields.clear();
        self.broken = None;
        self.newlines = 0;
        self.dropped = false;
    }

    fn scanned(&self) -> usize {
        self.scanned
    }

    fn drop_scanned(&mut self) {
        self.scanned = 0;
        self.fields.clear();
        self.dropped = true;
    }

    fn newlines(&self) -> u64 {
        self.newlines
    }

    fn is_open(&self) -> bool {
        self.state == State::Quoted
    }

    fn close(&mut self) {
        self.state = State::Plain;
    }

    fn is_blank(record: &[u8]) -> bool {
        record.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use crate::input::Reading;
    use crate::records::{Flaw, Next, Records, Unclosed};
    use proptest::prelude::*;
    use std::io::{Cursor, Read};

    /// A reader that returns at most `step` bytes a read.
    struct Slow(Cursor<Vec<u8>>, usize);

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            let step = self.1.min(buf.len());
            self.0.read(&mut buf[..step])
        }
    }

    type Fields = Vec<(Vec<u8>, Quoting)>;

    fn split(text: &[u8], step: usize, max: usize) -> Vec<(u64, Option<Flaw>, Fields)> {
        split_by(text, step, max, Unclosed::Stop)
    }

    fn split_by(
        text: &[u8],
        step: usize,
        max: usize,
        unclosed: Unclosed,
    ) -> Vec<(u64, Option<Flaw>, Fields)> {
        let dialect = Dialect { delimiter: b',', quote: Some(b'"') };
        let read = Slow(Cursor::new(text.to_vec()), step);
        let read = Reading::Whole(Box::new(read));
        let mut records = Records::new(read, CsvSplit::new(dialect), max, unclosed);
        let mut all = Vec::new();
        while let Next::Found(found) = records.next().unwrap() {
            let bytes = records.bytes(&found);
            let fields = match found.flaw {
                Some(_) => Vec::new(),
                None => records
                    .split
                    .fields
                    .iter()
                    .map(|f| (bytes[f.start as usize..f.end as usize].to_vec(), f.quoting))
                    .collect(),
            };
            all.push((found.line, found.flaw, fields));
            if found.flaw.is_some_and(|flaw| flaw != Flaw::TooLong) && unclosed == Unclosed::Stop {
                return all;
            }
        }
        let mark = records.mark();
        assert!(text[mark.bytes as usize..].trim_ascii().is_empty());
        assert_eq!(mark.checksum, Checksum::of(&text[..mark.bytes as usize]));
        all
    }

    #[test]
    fn fields_and_lines() {
        use Quoting::*;
        let text = b"a,\"b\nb\",\"\"\r\n\r\n\n,\"x\"\"y\"\r\n\"q\"z,1\r\nlast,";
        let field = |t: &str, q| (t.as_bytes().to_vec(), q);
        assert_eq!(
            split(text, 1000, 1000),
            [
                (1, None, vec![field("a", Plain), field("b\nb", Quoted), field("", Quoted)]),
                (5, None, vec![field("", Plain), field("x\"\"y", Escaped)]),
                (6, None, vec![field("q\"z", Broken), field("1", Plain)]),
                (7, None, vec![field("last", Plain), field("", Plain)]),
            ]
        );
    }

    #[test]
    fn long_records() {
        let long = format!("a,b\n{},x\n\"{}\",1\nc,d\n", "y".repeat(50), "z".repeat(10));
        for step in [1, 7, 1000] {
            let flaws: Vec<_> =
                split(long.as_bytes(), step, 20).iter().map(|r| (r.0, r.1)).collect();
            assert_eq!(flaws, [(1, None), (2, Some(Flaw::TooLong)), (3, None), (4, None)]);
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_ends_the_reading_or_its_line() {
        let (open, long) = (Some(Flaw::Unclosed), Some(Flaw::OpenTooLong));
        let end = "a,b\nc,\"d\ne,f\ng";
        let far = format!("a,b\nc,\"d\ne,{}\ng,h\"\n", "f".repeat(15));
        let line = format!("a,b\nc,\"{}\ne,f\n", "d".repeat(40));
        for step in [1, 7, 1000] {
            let flaws = |text: &str, unclosed| -> Vec<_> {
                let rows = split_by(text.as_bytes(), step, 20, unclosed);
                rows.into_iter().map(|row| (row.0, row.1)).collect()
            };
            let stop = |text| flaws(text, Unclosed::Stop);
            let skip = |text| flaws(text, Unclosed::Skip);
            assert_eq!(stop(end), [(1, None), (2, open)]);
            assert_eq!(skip(end), [(1, None), (2, open), (3, None), (4, None)]);
            assert_eq!(stop(&far), [(1, None), (2, long)]);
            assert_eq!(skip(&far), [(1, None), (2, long), (3, None), (4, None)]);
            assert_eq!(stop(&line), [(1, None), (2, long)]);
            assert_eq!(skip(&line), [(1, None), (2, Some(Flaw::TooLong)), (3, None)]);
        }
    }

    proptest! {
        #[test]
        fn reads_of_any_size_give_the_same(
            text in "[ab,\"\r\n]{0,60}", step in 1usize..20, max in 1usize..40,
        ) {
            let text = text.as_bytes();
            for unclosed in [Unclosed::Stop, Unclosed::Skip] {
                let whole = split_by(text, 1000, max, unclosed);
                prop_assert_eq!(split_by(text, step, max, unclosed), whole);
            }
        }

        #[test]
        fn like_the_csv_crate(rows in prop::collection::vec(
            prop::collection::vec("[a,\"\n é]{0,5}", 1..5), 0..8,
        )) {
            let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let text = writer.into_inner().unwrap();
            let ours: Vec<Vec<String>> = split(&text, 1000, 1000).into_iter().map(|(_, flaw, fields)| {
                assert_eq!(flaw, None);
                fields.into_iter().map(|(text, _)| {
                    String::from_utf8(text).unwrap().replace("\"\"", "\"")
                }).collect()
            }).collect();
            prop_assert_eq!(ours, rows);
        }
    }
}
