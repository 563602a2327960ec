//! JSON lines: one object a line.
//!
//! A missing field gets the column's default, or else null; without either the row is bad. A field
//! that occurs twice makes the row bad: readers disagree on which one counts, so neither is taken.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::Deserializer;
use serde_json::value::RawValue;
use tidemill_core::{BatchBuilder, Result, Schema};

use crate::files::{FilesSettings, UnknownFields};
use crate::json;
use crate::reader::Format;
use crate::records::Lines;
use crate::row::{rules, Rule, Scratch, Slot};
use crate::text::quoted;

/// The JSON lines format.
pub(crate) struct JsonlFormat {
    objects: JsonObjects,
    scratch: Scratch,
}

/// Objects whose fields are the columns.
pub(crate) struct JsonObjects {
    pub rules: Vec<Rule>,
    pub unknown: UnknownFields,
}

impl JsonObjects {
    /// Appends a slot for each column.
    pub fn slots(&self, record: &[u8], scratch: &mut Scratch) -> Result<(), String> {
        let record = std::str::from_utf8(record)
            .map_err(|e| format!("byte {} is not valid UTF-8", e.valid_up_to()))?;
        self.slots_of(record, scratch)
    }

    fn slots_of(&self, record: &str, scratch: &mut Scratch) -> Result<(), String> {
        let mut json = serde_json::Deserializer::from_str(record);
        let raws = Object { rules: &self.rules, unknown: self.unknown };
        let raws = raws.deserialize(&mut json).map_err(|e| json::why(&e))?;
        json.end().map_err(|e| json::why(&e))?;
        for (rule, raw) in self.rules.iter().zip(raws) {
            let slot = match raw {
                Some(raw) => json::slot(raw.get(), rule, scratch),
                None if rule.optional => Ok(Slot::Default),
                None => Err("the field is missing".into()),
            };
            let slot = slot.map_err(|why| format!("column '{}': {why}", rule.field))?;
            scratch.slots.push(slot);
        }
        Ok(())
    }
}

impl JsonlFormat {
    /// Creates a format that reads rows of `schema`.
    pub fn new(schema: &Schema, settings: &FilesSettings) -> Result<JsonlFormat> {
        let rules = rules(schema, &settings.columns, &settings.formats)?;
        let unknown = settings.unknown_fields.unwrap_or_default();
        Ok(JsonlFormat { objects: JsonObjects { rules, unknown }, scratch: Scratch::default() })
    }
}

impl Format for JsonlFormat {
    type Split = Lines;

    fn split(&self) -> Lines {
        Lines::default()
    }

    fn has_header(&self) -> bool {
        false
    }

    fn header(&mut self, _record: &[u8], _split: &Lines) -> Result<()> {
        Ok(())
    }

    fn decode(
        &mut self,
        record: &[u8],
        _split: &Lines,
        rows: &mut BatchBuilder,
    ) -> Result<(), String> {
        let record = std::str::from_utf8(record).map_err(|e| {
            format!("byte {} of the line is not valid text in the file's encoding", e.valid_up_to())
        })?;
        self.scratch.clear();
        self.objects.slots_of(record, &mut self.scratch)?;
        self.scratch.bound(&self.objects.rules)?;
        self.scratch.push(record, &self.objects.rules, rows);
        Ok(())
    }
}

/// An object's fields by column, as their text.
struct Object<'a> {
    rules: &'a [Rule],
    unknown: UnknownFields,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Vec<Option<&'de RawValue>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut raws = vec![None; self.rules.len()];
        let mut expected = 0;
        loop {
            let key = Key { rules: self.rules, expected, unknown: self.unknown };
            match map.next_key_seed(key)? {
                None => return Ok(raws),
                Some(None) => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(Some(index)) => {
                    if raws[index].is_some() {
                        let field = &self.rules[index].field;
                        return Err(A::Error::custom(format!(
                            "the field '{field}' is there twice"
                        )));
                    }
                    raws[index] = Some(map.next_value::<&RawValue>()?);
                    expected = index + 1;
                }
            }
        }
    }
}

/// The column of a field's name.
#[derive(Clone, Copy)]
struct Key<'a> {
    rules: &'a [Rule],
    /// The column after the last one. Most objects have their fields in the same order.
    expected: usize,
    unknown: UnknownFields,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        if self.rules.get(self.expected).is_some_and(|rule| rule.field == name) {
            return Ok(Some(self.expected));
        }
        match (self.rules.iter().position(|rule| rule.field == name), self.unknown) {
            (None, UnknownFields::Refuse) => {
                Err(E::custom(format!("the stream has no column {}", quoted(name))))
            }
            (place, _) => Ok(place),
        }
    }
}
