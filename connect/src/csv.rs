//! CSV.
//!
//! A field that can't be read makes only its row bad. The same holds for too many or too few
//! fields, text after a closing quote, and bytes that are not UTF-8.

use tidemill_core::error::nearest;
use tidemill_core::{BatchBuilder, DataType, Error, Result, Schema};

use crate::files::FilesSettings;
use crate::json;
use crate::reader::Format;
use crate::row::{rules, Rule, Scratch, Slot};
use crate::text;

mod split;

pub(crate) use split::{CsvSplit, Dialect, Quoting};

/// The CSV format of one file.
pub(crate) struct CsvFormat {
    origin: String,
    dialect: Dialect,
    has_header: bool,
    skip_lines: u64,
    /// The columns of the file, from the settings.
    order: Option<Vec<String>>,
    /// The columns of the file.
    names: Vec<String>,
    rules: Vec<Rule>,
    /// The field of each column of the schema in a record.
    fields: Vec<Option<usize>>,
    nulls: Vec<String>,
    scratch: Scratch,
}

impl CsvFormat {
    /// Creates a format that reads rows of `schema` from the file that `origin` names.
    pub fn new(origin: &str, schema: &Schema, settings: &FilesSettings) -> Result<CsvFormat> {
        let dialect = dialect(settings.delimiter, settings.quote.as_deref())?;
        let rules = rules(schema, &settings.columns, &settings.formats)?;
        let mut format = CsvFormat {
            origin: origin.into(),
            dialect,
            has_header: settings.header.unwrap_or(settings.order.is_none()),
            skip_lines: settings.skip_lines.unwrap_or(0),
            order: settings.order.clone(),
            names: Vec::new(),
            rules,
            fields: Vec::new(),
            nulls: settings.nulls.clone().unwrap_or_else(|| vec![String::new()]),
            scratch: Scratch::default(),
        };
        if let Some(order) = settings.order.clone() {
            format.map(order)?;
        } else if !format.has_header {
            format.map(format.rules.iter().map(|r| r.field.clone()).collect())?;
        }
        Ok(format)
    }

    /// Finds the schema's columns among the file's.
    fn map(&mut self, names: Vec<String>) -> Result<()> {
        let mut fields = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            let mut places = names.iter().enumerate().filter(|(_, name)| **name == rule.field);
            fields.push(match (places.next(), places.next()) {
                (Some((place, _)), None) => Some(place),
                (None, _) if rule.optional => None,
                (None, _) => return Err(self.no_column(rule, &names)),
                (Some(_), Some(_)) => {
                    let (origin, field) = (&self.origin, &rule.field);
                    return Err(Error::input(format!("{origin} has two columns named '{field}'"))
                        .help("rename one, or give the names in order=[...] with header=True"));
                }
            });
        }
        self.names = names;
        self.fields = fields;
        Ok(())
    }

    fn no_column(&self, rule: &Rule, names: &[String]) -> Error {
        let Rule { name, field, .. } = rule;
        let error = Error::input(format!("{} has no column '{field}'", self.origin));
        if let [one] = names {
            let is_other = |c: &char| u8::try_from(*c) != Ok(self.dialect.delimiter);
            let mut likely = [';', '\t', '|', ','].into_iter().filter(is_other);
            if let Some(delimiter) = likely.find(|c| one.contains(*c)) {
                return error.help(format!(
                    "its header is one column, '{}': write delimiter={delimiter:?}",
                    text::shorten(one, 200).escape_debug()
                ));
            }
            if self.rules.len() > 1 && nearest(field, [one.as_str()]).is_none() {
                return error.help(format!(
                    "its first line is {:?}: if the header is a later line, write skip_lines=1, or \
                     as many lines as are before it",
                    text::shorten(one, 200)
                ));
            }
        }
        // No column is called by a number.
        if names.iter().any(|name| name.parse::<f64>().is_ok()) {
            let first = names.join(", ");
            return error.help(format!(
                "its first line is {:?}: if that is a row, write header=False",
                text::shorten(&first, 200)
            ));
        }
        match nearest(field, names.iter().map(String::as_str)) {
            Some(near) => {
                error.help(format!("did you mean '{near}'? Say columns={{\"{name}\": \"{near}\"}}"))
            }
            None => {
                let names = names.join(", ");
                let names = text::shorten(&names, 200);
                error.help(format!(
                    "its columns are {names}: map one with columns={{\"{name}\": ...}}, or make \
                     '{name}' nullable or give it a default"
                ))
            }
        }
    }

    /// Returns the record as text, or an error with the column whose bytes are not text.
    fn text<'a>(&self, record: &'a [u8], split: &CsvSplit) -> Result<&'a str, String> {
        std::str::from_utf8(record).map_err(|e| {
            let place = e.valid_up_to() as u32;
            let index = split.fields.iter().position(|f| place < f.end).unwrap_or(0);
            format!("{}: not valid text in the file's encoding", self.column(index))
        })
    }

    fn column(&self, index: usize) -> String {
        match self.names.get(index) {
            Some(name) => format!("column '{name}'"),
            None => format!("field {}", index + 1),
        }
    }

    fn null(&self, rule: &Rule, text: &str) -> Result<Option<Slot>, String> {
        if !self.nulls.iter().any(|null| null == text) {
            return Ok(None);
        }
        match (rule.nullable, &rule.ty) {
            (true, _) => Ok(Some(Slot::Null)),
            (false, DataType::Str) if text.is_empty() => Ok(None),
            (false, _) => Err("null, but the column may not be null".into()),
        }
    }
}

/// Returns the dialect of these settings.
pub(crate) fn dialect(delimiter: Option<char>, quote: Option<&str>) -> Result<Dialect> {
    let ascii = |what: &str, c: char| match u8::try_from(c) {
        Ok(byte) if byte.is_ascii() && byte != b'\n' && byte != b'\r' => Ok(byte),
        _ => Err(Error::setting(format!("{what} {c:?} is not one ASCII character"))),
    };
    let delimiter = ascii("delimiter", delimiter.unwrap_or(','))?;
    let mut quote = quote.unwrap_or("\"").chars();
    let quote = match (quote.next(), quote.next()) {
        (None, _) => None,
        (Some(c), None) => Some(ascii("quote", c)?),
        _ => {
            return Err(Error::setting("quote has more than one character")
                .help("give one ASCII character, or \"\" for none"))
        }
    };
    if quote == Some(delimiter) {
        return Err(Error::setting("delimiter and quote are the same character")
            .help("give two different ones"));
    }
    Ok(Dialect { delimiter, quote })
}

impl Format for CsvFormat {
    type Split = CsvSplit;

    fn split(&self) -> CsvSplit {
        CsvSplit::new(self.dialect)
    }

    fn has_header(&self) -> bool {
        self.has_header
    }

    fn lines_before(&self) -> u64 {
        self.skip_lines
    }

    fn header(&mut self, record: &[u8], split: &CsvSplit) -> Result<()> {
        let origin = &self.origin;
        let record = std::str::from_utf8(record).map_err(|_| {
            Error::input(format!("{origin}: the header is not valid text"))
                .help("say which encoding the file has, for example encoding=\"windows-1252\"")
        })?;
        if split.broken.is_some() {
            return Err(Error::input(format!(
                "{origin}: text after a closing quote in the header"
            )));
        }
        if self.order.is_some() {
            return Ok(());
        }
        let quote = self.dialect.quote;
        let name = |f: &split::Field| {
            let text = &record[f.start as usize..f.end as usize];
            match f.quoting {
                Quoting::Escaped => unescaped(text, quote),
                Quoting::Plain => text.trim().into(),
                _ => text.into(),
            }
        };
        self.map(split.fields.iter().map(name).collect())
    }

    fn has_form(&self, split: &CsvSplit) -> bool {
        split.fields.len() == self.names.len() && split.broken.is_none()
    }

    fn decode(
        &mut self,
        record: &[u8],
        split: &CsvSplit,
        rows: &mut BatchBuilder,
    ) -> Result<(), String> {
        let record = self.text(record, split)?;
        let (found, wanted) = (split.fields.len(), self.names.len());
        if found != wanted {
            return Err(format!("{found} fields instead of {wanted}"));
        }
        if let Some(index) = split.broken {
            return Err(format!("{}: text after the closing quote", self.column(index)));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let result = self.rules.iter().zip(&self.fields).try_for_each(|(rule, field)| {
            let slot = match field {
                None => Slot::Default,
                Some(index) => {
                    let field = split.fields[*index];
                    let place = (field.start as usize, field.end as usize);
                    self.value(rule, record, place, field.quoting, &mut scratch)
                        .map_err(|why| format!("column '{}': {why}", rule.field))?
                }
            };
            scratch.slots.push(slot);
            Ok(())
        });
        let result = result.and_then(|()| scratch.bound(&self.rules));
        if result.is_ok() {
            scratch.push(record, &self.rules, rows);
        }
        self.scratch = scratch;
        result
    }
}

impl CsvFormat {
    /// Decodes one field. A quoted text is never null. For other types quotes mean nothing, because
    /// many programs quote everything.
    fn value(
        &self,
        rule: &Rule,
        record: &str,
        (start, end): (usize, usize),
        quoting: Quoting,
        scratch: &mut Scratch,
    ) -> Result<Slot, String> {
        let text = &record[start..end];
        if rule.ty == DataType::Str {
            return match quoting {
                Quoting::Plain => Ok(self.null(rule, text)?.unwrap_or(Slot::Text(start, end))),
                Quoting::Escaped => Ok(scratch.copy(&unescaped(text, self.dialect.quote))),
                Quoting::Quoted | Quoting::Broken => Ok(Slot::Text(start, end)),
            };
        }
        let plain;
        let text = match quoting {
            Quoting::Escaped => {
                plain = unescaped(text, self.dialect.quote);
                plain.trim_ascii()
            }
            _ => text.trim_ascii(),
        };
        if let Some(null) = self.null(rule, text)? {
            return Ok(null);
        }
        match &rule.ty {
            DataType::Int => text::int(text).map(Slot::Int),
            DataType::Float => text::float(text).map(Slot::Float),
            DataType::Bool => text::bool(text).map(Slot::Bool),
            DataType::Timestamp => rule.time.read(text).map(Slot::Int),
            DataType::Decimal(scale) => text::decimal(text, *scale).map(Slot::Int),
            DataType::Bytes => scratch.write(|out| text::bytes(text, out)),
            DataType::List(_) | DataType::Any => json::slot(json::checked(text)?, rule, scratch),
            DataType::Str => unreachable!("texts were handled above"),
        }
    }
}

fn unescaped(text: &str, quote: Option<u8>) -> String {
    match quote.map(char::from) {
        Some(quote) => text.replace(&format!("{quote}{quote}"), &quote.to_string()),
        None => text.into(),
    }
}
