//! The reasons of aborts, counted in bounded memory.
//!
//! Reasons that differ in numbers only, such as keys, count as one. The first other reasons are
//! counted apart, and the rest together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, StreamId, Value};
use tidemill_txn::execute::{AbortedSlide, Faulted};
use tidemill_txn::program::{Program, FAULT};

use crate::report::ReasonReport;

/// The most reasons that are counted apart.
const REASONS_MAX: usize = 256;
/// The retained length of a reason, in bytes.
const BYTES_MAX: usize = 256;
/// The number of reported reasons.
pub(crate) const REPORTED_MAX: usize = 5;

/// The reasons of aborts, by handler.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reasons {
    counted: Vec<Counted>,
    /// The aborts for reasons that are not counted apart.
    others: u64,
    /// The place of each reason, by its handler and its text without numbers.
    #[serde(skip)]
    places: HashMap<(String, String), usize>,
}

/// A reason.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Counted {
    handler: String,
    /// The first text.
    reason: String,
    /// The text without its numbers, where other texts have different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of_all: Option<String>,
    count: u64,
    /// The user's line of a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl Counted {
    fn report(&self) -> ReasonReport {
        ReasonReport {
            handler: self.handler.clone(),
            reason: self.of_all.as_ref().unwrap_or(&self.reason).clone(),
            count: self.count,
            at: self.at.clone(),
        }
    }
}

/// For each abort stream by name, the handler whose aborts it has.
pub(crate) fn aborting(program: &Program) -> BTreeMap<Arc<str>, String> {
    let named = |(stream, handler): (StreamId, usize)| {
        let name = program.handlers[handler].name.to_string();
        (program.streams[stream.index()].spec.name.clone(), name)
    };
    by_abort_stream(program).into_iter().map(named).collect()
}

/// For each abort stream, the handler whose aborts it has.
pub(crate) fn by_abort_stream(program: &Program) -> BTreeMap<StreamId, usize> {
    let all = program.handlers.iter().enumerate();
    let of = all.flat_map(|(number, handler)| {
        handler.inputs().map(move |input| (input.aborted, number)).collect::<Vec<_>>()
    });
    of.collect()
}

impl Reasons {
    /// Counts the abort events of a handler.
    pub(crate) fn count(&mut self, handler: &str, batch: &Batch) {
        let column = batch.schema().len() - 1;
        // A reason is mostly equal to the one before.
        let mut last: Option<(Arc<str>, u64)> = None;
        for row in 0..batch.len() {
            let Value::Str(reason) = batch.value(column, row) else { continue };
            match &mut last {
                Some((known, count)) if *known == reason => *count += 1,
                _ => {
                    if let Some((reason, count)) = last.replace((reason, 1)) {
                        self.add(handler, &reason, count);
                    }
                }
            }
        }
        if let Some((reason, count)) = last {
            self.add(handler, &reason, count);
        }
    }

    /// Counts a slide of a window whose triggers aborted, with the aborts of the procedure that
    /// owns it.
    pub(crate) fn slide(&mut self, program: &Program, slide: &AbortedSlide) {
        let owner = program.windows[slide.window.index()].owner;
        let handler = program.handlers[owner.index()].name.to_string();
        self.add(&handler, &slide.abort.public_reason(), 1);
    }

    /// Counts aborts of a handler for one reason.
    pub(crate) fn add(&mut self, handler: &str, reason: &str, count: u64) {
        if self.places.is_empty() {
            let places = self.counted.iter().enumerate();
            self.places = places
                .map(|(at, one)| ((one.handler.clone(), without_numbers(&one.reason)), at))
                .collect();
        }
        let key = (handler.to_owned(), without_numbers(reason));
        match self.places.get(&key) {
            Some(at) => {
                let one = &mut self.counted[*at];
                one.count += count;
                if one.of_all.is_none() && one.reason != shortened(reason) {
                    one.of_all = Some(key.1);
                }
            }
            None if self.counted.len() >= REASONS_MAX => self.others += count,
            None => {
                self.places.insert(key, self.counted.len());
                let (handler, reason) = (handler.to_owned(), shortened(reason).to_owned());
                self.counted.push(Counted { handler, reason, count, ..Counted::default() });
            }
        }
    }

    /// Notes the user's lines of faults.
    pub(crate) fn place(&mut self, program: &Program, faults: &[Faulted]) {
        for fault in faults {
            let (_, Some(at)) = fault.abort.parts() else { continue };
            let name = &program.handlers[fault.handler].name;
            self.place_at(name, &fault.abort.public_reason(), at);
        }
    }

    /// Notes the user's line of a counted reason.
    pub(crate) fn place_at(&mut self, handler: &str, reason: &str, at: &str) {
        let key = (handler.to_owned(), without_numbers(reason));
        if let Some(place) = self.places.get(&key) {
            self.counted[*place].at.get_or_insert_with(|| at.to_owned());
        }
    }

    /// Returns the most frequent reasons.
    pub(crate) fn report(&self) -> Vec<ReasonReport> {
        self.sorted().take(REPORTED_MAX).map(Counted::report).collect()
    }

    /// Returns the reasons of all faults that are counted apart, the most frequent one first.
    pub(crate) fn faults(&self) -> Vec<ReasonReport> {
        let is_fault = |one: &&Counted| one.reason.starts_with(FAULT);
        self.sorted().filter(is_fault).map(Counted::report).collect()
    }

    fn sorted(&self) -> impl Iterator<Item = &Counted> {
        let mut counted: Vec<&Counted> = self.counted.iter().collect();
        counted.sort_by_key(|reason| std::cmp::Reverse(reason.count));
        counted.into_iter()
    }
}

/// The retained part of a reason.
fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// A reason with a sign in place of each number.
fn without_numbers(reason: &str) -> String {
    let mut out = String::with_capacity(reason.len().min(BYTES_MAX));
    let mut in_number = false;
    for c in shortened(reason).chars() {
        match (c.is_ascii_digit(), in_number) {
            (true, false) => out.push('#'),
            (true, true) => {}
            (false, _) => out.push(c),
        }
        in_number = c.is_ascii_digit();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::{Column, DataType, Schema};

    fn counted(reasons: &mut Reasons, texts: &[&str]) {
        let schema = Schema::new(vec![Column::new("reason", DataType::Str)]);
        let rows: Vec<[Value; 1]> = texts.iter().map(|text| [Value::str(text)]).collect();
        let batch = Batch::from_rows(schema.into(), rows.iter().map(|row| &row[..]));
        reasons.count("pay", &batch);
    }

    fn report(reasons: &Reasons) -> Vec<(String, u64)> {
        reasons.report().into_iter().map(|one| (one.reason, one.count)).collect()
    }

    #[test]
    fn faults_are_all_reported() {
        let mut reasons = Reasons::default();
        counted(&mut reasons, &["no", "no", "fault: KeyError: 'a'", "fault: TypeError"]);
        counted(&mut reasons, &["a", "a", "b", "b", "c", "c", "d", "d", "fault: TypeError"]);
        let found = reasons.faults().into_iter().map(|one| (one.reason, one.count));
        let found = found.collect::<Vec<_>>();
        assert_eq!(found, [("fault: TypeError".into(), 2), ("fault: KeyError: 'a'".into(), 1)]);
    }

    #[test]
    fn reasons_are_counted_and_numbers_do_not_tell_them_apart() {
        let mut reasons = Reasons::default();
        counted(&mut reasons, &["a[1] is missing", "no", "no", "a[22] is missing", "no"]);
        assert_eq!(report(&reasons), [("no".into(), 3), ("a[#] is missing".into(), 2)]);
        // The reasons survive an encoding, and counting continues.
        let text = serde_json::to_string(&reasons).unwrap();
        let mut reasons: Reasons = serde_json::from_str(&text).unwrap();
        counted(&mut reasons, &["a[3] is missing", "a[3] is missing", "only 7"]);
        let wanted = [("a[#] is missing".into(), 4), ("no".into(), 3), ("only 7".into(), 1)];
        assert_eq!(report(&reasons), wanted);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut reasons = Reasons::default();
        let letters: Vec<char> = ('a'..='z').collect();
        for a in &letters {
            for b in &letters {
                counted(&mut reasons, &[&format!("{a}{b}{}", "é".repeat(1000))]);
            }
        }
        assert_eq!(reasons.counted.len(), REASONS_MAX);
        assert_eq!(reasons.others, 26 * 26 - REASONS_MAX as u64);
        assert!(reasons.counted.iter().all(|one| one.reason.len() <= BYTES_MAX));
        assert_eq!(report(&reasons).len(), REPORTED_MAX);
    }
}
