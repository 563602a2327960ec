//! A chain of procedures (`pe-triggers`; S-Store, section 4.2.2). Each procedure takes an event
//! from its stream and emits it into the next one's, after its commit.
//!
//! `ee-triggers` (S-Store, section 4.2.1) is a chain of triggers in one procedure's transaction
//! instead. Each trigger runs when an event is emitted into its stream, and emits one into the
//! next. Each input event is a batch. The measured time, from its arrival to the last link's
//! output, depends on the number of links.
//!
//! With `--length`, one chain is measured. With `--lengths 1,2,4`, several are, each `--repeat`
//! times. Then `time = a + b × length` is fitted to their medians by least squares, and r² says how
//! well it fits.
//!
//! The invariant: each stream outputs all events in their order, with one added by each procedure
//! before it.

use std::sync::Arc;

use serde_json::json;
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, BatchBuilder, Column, DataType, Error, Result, StreamId, Value};
use tidemill_table::Table;
use tidemill_txn::program::{Abort, Builder, On, Opaque, Tx};
use tidemill_txn::Program;

use crate::args::{Args, ProgramKind};
use crate::events::{push_words, Events};
use crate::execute::Verdicts;
use crate::report::Report;
use crate::run::{self, Case, Made};
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// The longest chain.
const LENGTH_MAX: usize = 64;
/// The nanoseconds per event and procedure above which the baseline is not tight.
const TIGHT_NS: f64 = 10.0;
/// The default number of events.
const EVENTS: usize = 50_000;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let Some(lengths) = &args.lengths else {
        return run::of::<Chain>(args, given, progress);
    };
    if args.length.is_some() || given.program.is_some() {
        return Err(Error::setting("--lengths: it excludes --length, and needs a program in Rust")
            .help("leave out --length and --program, or give one --length"));
    }
    let (mut points, mut last) = (Vec::new(), None);
    for length in self::lengths(lengths)? {
        let args = Args { length: Some(length), lengths: None, ..args.clone() };
        let report = run::of::<Chain>(&args, Given::default(), progress)?;
        let ns = 1e9 / report.events_per_s;
        progress(&format!("{length} links: {ns:.0} ns a batch"));
        points.push((length, ns, report.ratio, report.valid));
        last = Some(report);
    }
    let mut report = last.ok_or_else(|| Error::setting("--lengths: the list is empty"))?;
    report.valid = points.iter().all(|(.., valid)| *valid);
    let shown = points
        .iter()
        .map(|(length, ns, ratio, _)| json!({ "length": length, "ns": ns, "ratio": ratio }));
    report.details.insert("lengths".into(), shown.collect());
    if let Some((a, b, r2)) = line(points.iter().map(|(length, ns, ..)| (*length as f64, *ns))) {
        progress(&format!("{a:.0} ns and {b:.1} ns a link, r² {r2:.4}"));
        report.details.insert("fit".into(), json!({ "a_ns": a, "b_ns": b, "r2": r2 }));
    }
    Ok(report)
}

/// Parses lengths separated by commas.
pub(crate) fn lengths(given: &str) -> Result<Vec<usize>> {
    let wrong = || {
        Error::setting(format!(
            "--lengths {given}: it must be numbers from 1 to {LENGTH_MAX}, separated by commas"
        ))
    };
    let length = |text: &str| -> Result<usize> {
        let length = text.trim().parse().map_err(|_| wrong())?;
        if (1..=LENGTH_MAX).contains(&length) {
            Ok(length)
        } else {
            Err(wrong())
        }
    };
    given.split(',').map(length).collect()
}

/// The input stream.
pub(crate) const FIRST: &str = "s0";

/// Returns the program of a chain of procedures in Rust.
pub(crate) fn program_of(length: usize) -> Result<Program> {
    let parts = program(ProgramKind::Rust, Given::default(), length, false)?;
    let mut program = (*parts.program).clone();
    program.sources.clear();
    Ok(program)
}

/// Fits a line through points by least squares. Returns the intercept, the slope and r², or `None`
/// for fewer than two distinct lengths.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<(f64, f64, f64)> {
    let n = points.clone().count() as f64;
    let mean = points.clone().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
    let sum = |of: fn(f64, f64) -> f64| -> f64 {
        points.clone().map(|(x, y)| of(x - mean.0, y - mean.1)).sum()
    };
    let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
    let slope = xy / xx;
    (xx > 0.0)
        .then(|| (mean.1 - slope * mean.0, slope, if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 }))
}

/// Events with their own places as values.
#[derive(Clone, Debug)]
pub(crate) struct Counted(usize);

impl Events for Counted {
    fn count(&self) -> usize {
        self.0
    }

    fn stream(&self, _: usize) -> usize {
        0
    }

    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        std::iter::once(at as i64)
    }
}

/// The workload according to the options.
struct Chain {
    made: Made<Counted>,
    length: usize,
    is_inside: bool,
}

/// The workload with triggers inside one transaction.
pub(crate) const INSIDE: &str = "ee-triggers";

/// Returns the name of the stream after this many links.
fn stream(number: usize) -> String {
    format!("s{number}")
}

/// A link: takes an event and emits it with one added.
struct Link(StreamId);

impl Opaque for Link {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Value::Int(n) = event[0] else { unreachable!("the column is one of integers") };
        tx.emit(self.0, &[Value::Int(n + 1)])
    }
}

fn program(kind: ProgramKind, given: Given<'_>, length: usize, is_inside: bool) -> Result<Parts> {
    let column = || vec![Column::new("n", DataType::Int)];
    let mut b = Builder::new("chain");
    b.stream(&stream(0), column());
    let frame = b.finish()?;
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => {
            let mut b = Builder::new("chain");
            let mut from = b.stream(&stream(0), column());
            for number in 1..=length {
                let to = b.emitted(&stream(number), column());
                if is_inside && number > 1 {
                    let function = Arc::new(Link(to));
                    b.trigger(&format!("t{number}"), On::Emitted(from), &[to], function);
                    from = to;
                    continue;
                }
                b.procedure(&format!("p{number}"), &[from], &[to], Arc::new(Link(to)));
                from = to;
            }
            b.finish()?
        }
        (ProgramKind::Python, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
        _ => {
            let what = format!("--program {}: this workload has no such program", kind.name());
            return Err(Error::setting(what).help("use --program rust, or python from Python"));
        }
    };
    shape::parts("a chain of links", program, &frame)
}

impl Case for Chain {
    type Events = Counted;
    /// The last output number.
    type Baseline = usize;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Chain> {
        let length = args.length.unwrap_or(1);
        if !(1..=LENGTH_MAX).contains(&length) {
            let what = format!("--length {length}: a chain has 1 to {LENGTH_MAX} links");
            return Err(Error::setting(what));
        }
        let is_inside = args.workload == INSIDE;
        let parts = program(args.program, given, length, is_inside)?;
        let events = Counted(args.events.unwrap_or(EVENTS));
        Ok(Chain {
            made: Made { keys: 1, ..Made::new(args, parts, events, work) },
            length,
            is_inside,
        })
    }

    fn made(&self) -> &Made<Counted> {
        &self.made
    }

    fn transactions(&self) -> usize {
        // All triggers run in the transaction of the one procedure.
        if self.is_inside {
            self.made.events.0
        } else {
            self.length * self.made.events.0
        }
    }

    fn baseline(&self) -> usize {
        0
    }

    /// Calls as many functions, which the compiler can't see through.
    fn run_baseline(&self, last: &mut usize) -> Verdicts {
        for event in 0..self.made.events.0 {
            *last = (0..self.length).fold(event, |n, _| std::hint::black_box(n) + 1);
        }
        Verdicts::default()
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS * self.length as f64
    }

    fn holds(&self, last: &usize, tables: &[Table]) -> bool {
        tables.is_empty() && *last == self.made.events.0 - 1 + self.length
    }

    fn output_hash(&self, _: &usize) -> Option<String> {
        let schema = &self.made.parts.inputs[0].1;
        let hash_of = |number: usize| {
            let mut builder = BatchBuilder::new(schema.clone());
            let numbers = number as i64..(self.made.events.0 + number) as i64;
            numbers.for_each(|n| push_words(&mut builder, [n]));
            let batch: Batch = builder.finish();
            let mut hash = RowsHash::default();
            hash.take(&batch);
            hash
        };
        let names: Vec<String> = (1..=self.length).map(stream).collect();
        let hashes = names.iter().zip(1..).map(|(name, number)| (&**name, hash_of(number)));
        Some(format!("{:032x}", streams_hash(hashes)))
    }
}

#[cfg(test)]
mod tests {
    use super::line;
    use crate::check;

    #[test]
    fn all_that_comes_in_comes_out_behind_every_procedure() {
        for options in [r#""length":1"#, r#""length":64"#, r#""length":3,"epoch":7"#] {
            let options = format!(r#"{options},"events":300,"repeat":1"#);
            let report = check::report("pe-triggers", &options, Vec::new());
            assert_eq!(report["valid"], true, "{report}");
        }
        let mut hashes = Vec::new();
        for workload in ["pe-triggers", super::INSIDE] {
            let options = r#""lengths":"1, 2,5","events":300,"repeat":1"#;
            let report = check::report(workload, options, Vec::new());
            assert_eq!(report["valid"], true, "{report}");
            assert_eq!(report["lengths"].as_array().unwrap().len(), 3);
            assert!(report["fit"]["r2"].as_f64().unwrap() <= 1.0, "{report}");
            hashes.push(report["output_hash"].clone());
        }
        // The outputs are equal, whether in one transaction or in five.
        assert_eq!(hashes[0], hashes[1]);
    }

    #[test]
    fn a_line_is_found() {
        let (a, b, r2) = line([(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)].into_iter()).unwrap();
        assert!((a - 3.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9 && (r2 - 1.0).abs() < 1e-9);
        let (_, b, r2) = line([(1.0, 5.0), (2.0, 5.5), (3.0, 5.0)].into_iter()).unwrap();
        assert!(b.abs() < 1e-9 && r2.abs() < 1e-9);
        assert!(line([(1.0, 5.0)].into_iter()).is_none());
    }

    #[test]
    fn wrong_options_are_named() {
        check::are_refused(
            "pe-triggers",
            &[
                (r#""length":0"#, "--length 0"),
                (r#""length":65"#, "--length 65"),
                (r#""lengths":"1,x""#, "--lengths 1,x"),
                (r#""lengths":"1","length":2"#, "--lengths"),
                (r#""program":"traced""#, "--program traced"),
            ],
        );
    }
}
