//! The reasons of aborts, counted in bounded memory.
//!
//! Reasons that differ in numbers only, such as keys, count as one. The first other reasons are
//! counted apart, and the rest together.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, StreamId, Value};

use crate::execute::{AbortedSlide, Faulted};
use crate::program::{Program, FAULT};

/// The most reasons that are counted apart.
const REASONS_MAX: usize = 256;
/// The retained length of a reason, in bytes.
const BYTES_MAX: usize = 256;
/// The reasons of aborts, by handler.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reasons {
    counted: Vec<CountedReason>,
    /// The aborts for reasons that are not counted apart.
    others: u64,
    /// The place of each reason, by its handler and its text without numbers.
    #[serde(skip)]
    places: HashMap<(String, String), usize>,
}

/// A reason with its number of aborts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedReason {
    /// The handler.
    pub handler: String,
    /// The first text.
    pub reason: String,
    /// The text without its numbers, where other texts have different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_all: Option<String>,
    /// The number of aborts.
    pub count: u64,
    /// The user's line of a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl CountedReason {
    /// Returns the text, without its numbers where they differ.
    pub fn text(&self) -> &str {
        self.of_all.as_ref().unwrap_or(&self.reason)
    }
}

impl fmt::Debug for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (&self.counted, self.others).fmt(f)
    }
}

impl PartialEq for Reasons {
    fn eq(&self, other: &Reasons) -> bool {
        (&self.counted, self.others) == (&other.counted, other.others)
    }
}

/// For each abort stream, the handler whose aborts it has.
pub fn by_abort_stream(program: &Program) -> BTreeMap<StreamId, usize> {
    let all = program.handlers.iter().enumerate();
    let of = all.flat_map(|(number, handler)| {
        handler.inputs().map(move |input| (input.aborted, number)).collect::<Vec<_>>()
    });
    of.collect()
}

impl Reasons {
    /// Counts the abort events of a handler.
    pub fn count(&mut self, handler: &str, batch: &Batch) {
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
    pub fn slide(&mut self, program: &Program, slide: &AbortedSlide) {
        let owner = program.windows[slide.window.index()].owner;
        let handler = program.handlers[owner.index()].name.to_string();
        self.add(&handler, &slide.abort.public_reason(), 1);
    }

    /// Counts aborts of a handler for one reason.
    pub fn add(&mut self, handler: &str, reason: &str, count: u64) {
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
            None if count == 0 || self.counted.len() >= REASONS_MAX => self.others += count,
            None => {
                self.places.insert(key, self.counted.len());
                let (handler, reason) = (handler.to_owned(), shortened(reason).to_owned());
                let more = CountedReason { handler, reason, count, ..CountedReason::default() };
                self.counted.push(more);
            }
        }
    }

    /// Notes the user's lines of faults.
    pub fn place(&mut self, program: &Program, faults: &[Faulted]) {
        for fault in faults {
            let (_, Some(at)) = fault.abort.parts() else { continue };
            let name = &program.handlers[fault.handler].name;
            self.place_at(name, &fault.abort.public_reason(), at);
        }
    }

    /// Notes the user's line of a counted reason.
    pub fn place_at(&mut self, handler: &str, reason: &str, at: &str) {
        let key = (handler.to_owned(), without_numbers(reason));
        if let Some(place) = self.places.get(&key) {
            self.counted[*place].at.get_or_insert_with(|| at.to_owned());
        }
    }

    /// Adds counts of later transactions.
    pub fn add_all(&mut self, later: &Reasons) {
        for CountedReason { handler, reason, of_all, count, at } in &later.counted {
            self.add(handler, reason, *count);
            if let Some(of_all) = of_all {
                // The later texts differ in their numbers.
                self.add(handler, of_all, 0);
            }
            if let Some(at) = at {
                self.place_at(handler, reason, at);
            }
        }
        self.others += later.others;
    }

    /// Returns all reasons that are counted apart, and the number of other aborts.
    pub fn all(&self) -> (&[CountedReason], u64) {
        (&self.counted, self.others)
    }

    /// Creates the counts that [`Reasons::all`] has returned.
    pub fn of(counted: Vec<CountedReason>, others: u64) -> Reasons {
        Reasons { counted, others, places: HashMap::new() }
    }

    /// Returns the reasons of all faults that are counted apart, the most frequent one first.
    pub fn faults(&self) -> impl Iterator<Item = &CountedReason> {
        self.sorted().filter(|one| one.reason.starts_with(FAULT))
    }

    /// Returns the reasons that are counted apart, the most frequent one first.
    pub fn sorted(&self) -> impl Iterator<Item = &CountedReason> {
        let mut counted: Vec<&CountedReason> = self.counted.iter().collect();
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
        reasons.sorted().map(|one| (one.text().to_owned(), one.count)).collect()
    }

    #[test]
    fn faults_are_all_reported() {
        let mut reasons = Reasons::default();
        counted(&mut reasons, &["no", "no", "fault: KeyError: 'a'", "fault: TypeError"]);
        counted(&mut reasons, &["a", "a", "b", "b", "c", "c", "d", "d", "fault: TypeError"]);
        let found = reasons.faults().map(|one| (one.text(), one.count)).collect::<Vec<_>>();
        assert_eq!(found, [("fault: TypeError", 2), ("fault: KeyError: 'a'", 1)]);
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
        // The sum of two has the same bound.
        let (mut sum, later) = (reasons.clone(), reasons);
        sum.add_all(&later);
        assert_eq!((sum.counted.len(), sum.others), (REASONS_MAX, 2 * later.others));
        assert_eq!(sum.counted[0].count, 2 * later.counted[0].count);
    }
}
