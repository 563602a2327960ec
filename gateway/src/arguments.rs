//! The parameters of a call, from JSON.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::Deserializer as _;
use serde_json::value::RawValue;
use tidemill_connect::values;
use tidemill_core::error::nearest;
use tidemill_core::{rules, Column, Schema, Value};

use crate::refusal::Refusal;

/// Returns a value for each parameter. `caller` has the parameter for the caller, which no client
/// may give, and its value.
///
/// # Errors
/// If the body is not an object, if it names an unknown parameter, or if a value is missing or
/// doesn't fit.
pub(crate) fn arguments(
    body: &[u8],
    parameters: &Schema,
    caller: Option<(usize, Value)>,
) -> Result<Vec<Value>, Refusal> {
    let fields = fields(body)?;
    let mut given: Vec<Option<&RawValue>> = vec![None; parameters.len()];
    let is_open = |index: &usize| caller.as_ref().is_none_or(|(hidden, _)| hidden != index);
    for (name, value) in fields {
        let Some(index) = parameters.index_of(&name).filter(is_open) else {
            let open = (0..parameters.len()).filter(is_open);
            let names = || open.clone().map(|index| &*parameters.columns[index].name);
            let help = match nearest(&name, names()) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("the parameters are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Refusal::wrong(format!("there is no parameter '{name}'"), &help));
        };
        if given[index].replace(value).is_some() {
            let what = format!("parameter '{name}' is given twice");
            return Err(Refusal::wrong(what, "give it once"));
        }
    }
    let all = parameters.columns.iter().zip(given);
    let values: Result<Vec<Value>, Refusal> =
        all.map(|(column, raw)| argument(column, raw)).collect();
    let mut values = values?;
    if let Some((index, name)) = caller {
        values[index] = name;
    }
    Ok(values)
}

fn argument(column: &Column, raw: Option<&RawValue>) -> Result<Value, Refusal> {
    let wrong = |why: String| {
        let null = if column.nullable { " or null" } else { "" };
        let help = format!("give {}{null}", words(column));
        Refusal::wrong(format!("parameter '{}': {why}", column.name), &help)
    };
    match (raw, &column.default) {
        (Some(raw), _) => {
            values::read(raw.get(), column).map_err(|why| wrong(values::with_kind(&why)))
        }
        (None, Some(default)) => {
            rules::store(default, column).map_err(|fault| wrong(fault.to_string()))
        }
        (None, None) if column.nullable => Ok(Value::Null),
        (None, None) => Err(wrong("it is missing".into())),
    }
}

/// Returns the form of a column's values in JSON, in words.
fn words(column: &Column) -> String {
    use tidemill_core::DataType::*;
    match &column.ty {
        Int => "an integer of 64 bits".into(),
        Float => "a number, or \"NaN\", \"inf\", \"-inf\"".into(),
        Bool => "true or false".into(),
        Str => "a string".into(),
        Bytes => "bytes as \"0x...\"".into(),
        Timestamp => "a time as \"2026-01-31T12:00:00Z\", or microseconds since 1970".into(),
        Decimal(scale) => {
            format!("a decimal as \"12.5\", of at most {scale} digits after the point")
        }
        List(_) => "an array".into(),
        Any => "any value".into(),
    }
}

/// Returns the fields of an object, in their order.
fn fields(body: &[u8]) -> Result<Vec<(String, &RawValue)>, Refusal> {
    struct Object;

    impl<'de> Visitor<'de> for Object {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with the parameters")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some(field) = map.next_entry()? {
                fields.push(field);
            }
            Ok(fields)
        }
    }

    let mut json = serde_json::Deserializer::from_slice(body);
    let fields = json.deserialize_map(Object).and_then(|fields| json.end().map(|()| fields));
    fields.map_err(|error| {
        let help = "send the parameters as a JSON object: {\"name\": value}, or {} for none";
        Refusal::wrong(format!("the body is not valid: {error}"), help)
    })
}
