//! A request: an object whose fields are taken one by one as text, so that numbers keep all digits.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tidemill_core::error::nearest;
use tidemill_core::{Error, Result};

/// The fields of a request that have not been taken yet.
pub(crate) struct Fields {
    verb: String,
    left: BTreeMap<String, Box<RawValue>>,
    known: Vec<&'static str>,
}

impl Fields {
    /// Parses a request.
    ///
    /// # Errors
    /// When it is not an object with `do`.
    pub(crate) fn parse(request: &[u8]) -> Result<Fields> {
        let help = "a request is one JSON object on a line, such as {\"do\": \"status\"}";
        let left = serde_json::from_slice(request).map_err(|e| {
            Error::input(format!("the request is not a JSON object: {e}")).help(help)
        })?;
        let mut fields = Fields { verb: String::new(), left, known: Vec::new() };
        match fields.take::<String>("do")? {
            Some(verb) => fields.verb = verb,
            None => return Err(Error::input("the request has no field 'do'").help(help)),
        }
        Ok(fields)
    }

    /// The verb of the request.
    pub(crate) fn verb(&self) -> &str {
        &self.verb
    }

    /// Takes the text of a field.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<Box<RawValue>> {
        self.known.push(name);
        self.left.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Takes an optional field.
    ///
    /// # Errors
    /// When it has another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = serde_json::from_str(raw.get());
        value.map(Some).map_err(|e| Error::input(format!("the request's {name}: {e}")))
    }

    /// Takes a required field.
    ///
    /// # Errors
    /// When it is missing or has another type.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T> {
        let missing = || Error::input(format!("the request '{}' needs {name}", self.verb));
        let missing = missing();
        self.take(name)?.ok_or(missing)
    }

    /// Takes a number of rows, at most `max`; `usual` when absent.
    ///
    /// # Errors
    /// When it is more.
    pub(crate) fn limit(&mut self, usual: usize, max: usize) -> Result<usize> {
        let limit = self.take("limit")?.unwrap_or(usual);
        if limit > max {
            return Err(Error::input(format!("limit is at most {max}, not {limit}")));
        }
        Ok(limit)
    }

    /// Checks that all fields have been taken.
    ///
    /// # Errors
    /// When a field is left.
    pub(crate) fn done(self) -> Result<()> {
        let Some(name) = self.left.keys().next() else { return Ok(()) };
        let error = Error::input(format!("the request '{}' has no field '{name}'", self.verb));
        Err(match nearest(name, self.known.iter().copied()) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None => error,
        })
    }
}
