//! A test function for graphs as text: transactions in, a table of their dependencies out.
//!
//! Each line is one transaction, with its operations between semicolons: `write A`, `write B from A
//! C`, `read A`. `A..` is a window over the versions of a row. `?A` is known only once it runs, and
//! expected to be row A. A transaction with a bare `?`, of which nothing is expected, is in no
//! graph and splits the others.

use std::collections::{BTreeMap, BTreeSet};

use expect_test::{expect, Expect};

use super::{Collected, Graph, Operations, Put, Size};
use crate::pool::SingleThread;

/// The rows of an operation, and whether it writes the first.
struct Operation {
    writes: bool,
    rows: Vec<u8>,
    /// The rows of which it reads all versions.
    windows: Vec<u8>,
}

struct Text(Vec<Vec<Operation>>);

impl Operations for Text {
    fn txns(&self) -> usize {
        self.0.len()
    }

    fn size(&self, txn: usize) -> Size {
        let operations = &self.0[txn];
        Size {
            vertices: operations.len() as u32,
            accesses: operations.iter().map(|o| o.rows.len() as u32).sum(),
            words: operations.iter().filter(|o| o.writes).count() as u32,
        }
    }

    fn decompose(&self, txn: usize, put: &mut Put<'_>) {
        let mut entries = Vec::new();
        for operation in &self.0[txn] {
            put.vertex(0, 0);
            for (nth, row) in operation.rows.iter().enumerate() {
                let words = u32::from(operation.writes && nth == 0);
                entries.push((words > 0, put.access(words), *row));
            }
        }
        entries.sort_by_key(|(writes, _, _)| *writes);
        for (_, access, row) in entries {
            put.entry(access, 0, u64::from(row), u64::from(row) << 20);
        }
    }
}

fn parse(line: &str) -> (String, Vec<Operation>) {
    let (name, operations) = line.split_once(':').expect("t1: operations");
    let parse = |operation: &str| {
        let words: Vec<&str> = operation.split_whitespace().collect();
        let (mut rows, mut windows) = (Vec::new(), Vec::new());
        for word in words[1..].iter().filter(|w| **w != "from") {
            let row = *word.trim_end_matches('.').as_bytes().last().expect("a row");
            if word.ends_with("..") {
                windows.push(row);
            }
            // A write's own row adds no dependency beyond the temporal one.
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        Operation { writes: words[0] == "write", rows, windows }
    };
    (name.trim().into(), operations.split(';').map(parse).collect())
}

/// Checks the dependencies of each operation.
fn check(text: &str, expected: Expect) {
    let mut shown = String::new();
    let mut number = 0;
    let lines: Vec<(String, Vec<Operation>)> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(parse).collect();
    let is_known = |(_, operations): &(String, Vec<Operation>)| {
        operations.iter().all(|o| !o.rows.contains(&b'?'))
    };
    let mut lines = lines.into_iter().peekable();
    while let Some(first) = lines.next() {
        if !is_known(&first) {
            number += 1;
            shown += &format!("O{number} {}: after all before, before all after\n", first.0);
            continue;
        }
        let mut stretch = vec![first];
        while let Some(next) = lines.next_if(is_known) {
            stretch.push(next);
        }
        shown += &table(stretch, &mut number);
    }
    expected.assert_eq(&shown);
}

fn planned(text: &Text) -> Graph {
    let (mut graph, mut collected, mut lists) =
        (Graph::default(), Collected::default(), Vec::new());
    graph.collect(text, &SingleThread, &mut collected).unwrap();
    graph.link(&collected, &SingleThread, &mut lists, &[], |_, _| (), |_, _, _| None);
    graph
}

/// Returns the graph of transactions whose rows are all known.
#[cfg(loom)]
pub(crate) fn graph(text: &str) -> Graph {
    planned(&Text(text.lines().map(|line| parse(line).1).collect()))
}

fn table(stretch: Vec<(String, Vec<Operation>)>, number: &mut u32) -> String {
    let (names, operations): (Vec<String>, Vec<Vec<Operation>>) = stretch.into_iter().unzip();
    let text = Text(operations);
    let graph = planned(&text);
    let mut shown = String::new();
    let name = |vertex: u32| format!("O{}", *number + vertex + 1);
    for vertex in 0..graph.len() as u32 {
        let mut by_kind: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        let txn = graph.vertex(vertex).txn;
        let operation = &text.0[txn as usize][(vertex - graph.operations(txn).start) as usize];
        for (access, row) in graph.accesses_of(vertex).zip(&operation.rows) {
            let kind = if graph.access(access).writes() { "TD" } else { "PD" };
            let versions = if operation.windows.contains(row) { usize::MAX } else { 1 };
            for from in graph.writes(graph.access(access).from()).take(versions) {
                by_kind.entry(kind).or_default().insert(graph.access(from).vertex());
            }
        }
        let siblings = graph.operations(txn).filter(|sibling| *sibling != vertex);
        by_kind.entry("LD").or_default().extend(siblings);
        shown += &format!("{} {}", name(vertex), names[txn as usize]);
        for kind in ["TD", "PD", "LD"] {
            let on = by_kind.remove(kind).unwrap_or_default();
            if !on.is_empty() {
                let on: Vec<String> = on.into_iter().map(name).collect();
                shown += &format!(" {kind}: {}", on.join(" "));
            }
        }
        shown.push('\n');
    }
    *number += graph.len() as u32;
    shown
}

#[test]
fn the_running_example() {
    check(
        "t1: write A
         t2: write A; write B from A
         t3: write B; write C from B",
        expect![[r#"
            O1 t1
            O2 t2 TD: O1 LD: O3
            O3 t2 PD: O1 LD: O2
            O4 t3 TD: O3 LD: O5
            O5 t3 PD: O3 LD: O4
        "#]],
    );
}

#[test]
fn operations_see_what_their_transaction_began_with() {
    check(
        "t1: write A; write B
         t2: write A from B; write B from A",
        expect![[r#"
            O1 t1 LD: O2
            O2 t1 LD: O1
            O3 t2 TD: O1 PD: O2 LD: O4
            O4 t2 TD: O2 PD: O1 LD: O3
        "#]],
    );
}

#[test]
fn reads_depend_on_writes_and_nobody_on_reads() {
    check(
        "t1: read A
         t2: write A
         t3: read A
         t4: read A
         t5: write A from A",
        expect![[r#"
            O1 t1
            O2 t2
            O3 t3 PD: O2
            O4 t4 PD: O2
            O5 t5 TD: O2
        "#]],
    );
}

#[test]
fn unknown_rows_depend_on_everything() {
    check(
        "t1: write A
         t2: write B from A
         t3: write ?
         t4: write A; write C from B",
        expect![[r#"
            O1 t1
            O2 t2 PD: O1
            O3 t3: after all before, before all after
            O4 t4 LD: O5
            O5 t4 LD: O4
        "#]],
    );
}

#[test]
fn windows_depend_on_every_version() {
    check(
        "t1: write A
         t2: write A; write B
         t3: write C from A.. B
         t4: write A
         t5: read A..",
        expect![[r#"
            O1 t1
            O2 t2 TD: O1 LD: O3
            O3 t2 LD: O2
            O4 t3 PD: O1 O2 O3
            O5 t4 TD: O2
            O6 t5 PD: O1 O2 O5
        "#]],
    );
}

#[test]
fn computed_keys_stand_where_they_are_expected() {
    check(
        "t1: write A
         t2: write ?A
         t3: read A
         t4: write B from ?A
         t5: write ?
         t6: write A",
        expect![[r#"
            O1 t1
            O2 t2 TD: O1
            O3 t3 PD: O2
            O4 t4 PD: O2
            O5 t5: after all before, before all after
            O6 t6
        "#]],
    );
}
