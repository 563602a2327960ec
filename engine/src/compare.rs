//! The comparison of two versions of a program: the differences, and the conversion of the tables'
//! rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{json, Value};
use tidemill_core::{encode, EngineUse, Error, Kind, Result, Row, TableId, TableSpec};
use tidemill_durable::Store;
use tidemill_env::Env;
use tidemill_place::{partition_of_bytes, Partition};
use tidemill_snapshot::{load, Manifest, Part};
use tidemill_table::StoredVersion;
use tidemill_txn::program::{Handler, OwnedWindow, Program};

use crate::carry::carry;
use crate::changes::{counted, Change, Found};
use crate::convert::{names_of, Columns, Owner};
use crate::fingerprint::forget_lines;
use crate::histories::{is_shorter, shown, RowVersions};
use crate::internal::Internal;
use crate::renames::Renames;
use crate::requests::{is_hidden, to_one, to_several, EXPIRIES, REQUESTS};
use crate::schema::Left;
use crate::stored::Stored;

/// The present data, beside another version of the program.
pub(crate) struct Comparison<'a> {
    /// The tables of the old program.
    tables: Vec<TablePlan<'a>>,
    /// The new tables.
    added: Vec<&'a TableSpec>,
    /// The new program, and the number of its tables.
    to: &'a Program,
    count: usize,
    /// The internal state of the new program.
    pub(crate) internal: Internal,
    /// The conversion of requests, if the programs are of one app in different ways to run.
    requests: Option<MovedRequests>,
    /// The differences beside the tables.
    rest: Found,
}

/// The conversion of a row of a request into its rows in the other way to run.
type MovedRequests = fn(&[tidemill_core::Value]) -> Option<[Row; 2]>;

/// A table of the old program, and the plan for its rows.
struct TablePlan<'a> {
    from: &'a TableSpec,
    rows: u64,
    /// The time before which the old program gets no events any more, in microseconds.
    frontier_us: i64,
    /// The retained versions of rows, among those that have been read.
    versions: u64,
    /// The table in the new program, if it still exists.
    to: Option<TableNow<'a>>,
}

struct TableNow<'a> {
    id: TableId,
    spec: &'a TableSpec,
    /// The new names of the old columns.
    names: Vec<String>,
    columns: Columns,
    /// Whether rows stay unchanged, with the same number of the table.
    is_same: bool,
}

impl<'a> Comparison<'a> {
    /// Compares two versions. [`look`](Comparison::look) finds out whether the rows can be
    /// converted.
    ///
    /// # Errors
    /// When the setting `renames` or a sink is wrong.
    pub(crate) fn of(
        env: &Env,
        left: &'a Left,
        to: &'a Stored,
        renames: &BTreeMap<String, String>,
    ) -> Result<Comparison<'a>> {
        let from = &left.stored;
        let renames = Renames::of(renames, &from.program, &to.program)?;
        let facts = &left.internal.facts;
        let rows = &facts.tables;
        let tables = from.program.tables.iter().enumerate().map(|(index, table)| {
            let rows = rows.get(index).copied().unwrap_or(0);
            let to = match is_kept(&from.program, index, &to.program) {
                true => TableNow::of(&from.program, index, &to.program, &renames),
                false => None,
            };
            TablePlan { from: table, rows, frontier_us: facts.frontier_us(index), versions: 0, to }
        });
        let tables: Vec<TablePlan<'_>> = tables.collect();
        let old = |id: usize| {
            tables.iter().find(|plan| plan.to.as_ref().is_some_and(|to| to.id.index() == id))
        };
        let all = to.program.tables.iter().enumerate();
        // An index that both programs have is built again, but is no news.
        let has_index = |table: &TableSpec| {
            let is_it = |of: &&TableSpec| of.name == table.name && of.schema == table.schema;
            let found = from.program.tables.iter().find(is_it);
            let index = |of: &TableSpec| matches!(of.keeps, Some(EngineUse::Index { .. }));
            index(table) && found.is_some_and(index)
        };
        let added = all.clone().filter(|(id, table)| old(*id).is_none() && !has_index(table));
        let added = added.map(|(_, table)| table).collect();
        let kept = all.map(|(id, _)| old(id).map_or((0, i64::MIN), |p| (p.rows, p.frontier_us)));
        let (internal, mut rest) = carry(env, from, &left.internal, to, kept.unzip())?;
        handlers(&from.program, &to.program, &renames, &mut rest);
        let (count, requests) = (to.program.tables.len(), requests(&from.program, &to.program));
        Ok(Comparison { tables, added, to: &to.program, count, internal, requests, rest })
    }

    /// Reads the rows whose values decide whether they can be converted.
    pub(crate) fn look(&mut self, store: &Arc<dyn Store>, manifest: &Manifest) -> Result<()> {
        let depends = |plan: &TablePlan<'_>| {
            plan.from.history.is_some()
                || plan.to.as_ref().is_some_and(|to| to.columns.depends_on_values())
        };
        match self.tables.iter().any(depends) {
            true => self.rows(store, manifest, depends, |_, _, _, _| {}),
            false => Ok(()),
        }
    }

    /// Converts all rows and their versions. `take` gets table, partition, key and row in the
    /// canonical encoding.
    pub(crate) fn convert(
        &mut self,
        store: &Arc<dyn Store>,
        manifest: &Manifest,
        mut take: impl FnMut(TableId, Partition, &[u8], &[u8]),
    ) -> Result<()> {
        let (to, count) = (self.to, self.count);
        let (mut taken, mut why) = (BTreeMap::<TableId, BTreeSet<Vec<u8>>>::new(), Vec::new());
        self.rows(
            store,
            manifest,
            |_| true,
            |table, partition, key, row| {
                take(table, partition, key, row);
                if table.index() >= count {
                    return;
                }
                // The entries of indexes follow from the rows.
                let Ok(row) = decode(&to.tables[table.index()], row) else { return };
                for (index, is_unique, entry) in to.index_entries(table, &row) {
                    let spec = &to.tables[index.index()];
                    let (key, bytes) = encoded(spec, &entry);
                    if is_unique && !taken.entry(index).or_default().insert(key.clone()) {
                        let values: Vec<String> =
                            spec.key.iter().map(|column| entry[*column].to_string()).collect();
                        why.push(format!(
                        "index {} is unique, and two rows have {} there: make them differ first",
                        spec.name,
                        values.join(", ")
                    ));
                        continue;
                    }
                    take(index, partition_of_bytes(spec, &key), &key, &bytes);
                }
            },
        )?;
        why.truncate(10);
        self.rest.why.extend(why);
        Ok(())
    }

    fn rows(
        &mut self,
        store: &Arc<dyn Store>,
        manifest: &Manifest,
        wanted: impl Fn(&TablePlan<'_>) -> bool,
        mut take: impl FnMut(TableId, Partition, &[u8], &[u8]),
    ) -> Result<()> {
        let wanted: Vec<bool> = self.tables.iter().map(wanted).collect();
        let (count, tables, program) = (self.count, &mut self.tables, self.to);
        let named = |name: &str| program.tables.iter().position(|table| *table.name == *name);
        let moved = (self.requests.zip(named(REQUESTS)), named(EXPIRIES));
        let (before, mut row) = (tables.len(), Encoded::default());
        let mut versions = RowVersions::default();
        load(store, manifest, |loaded| {
            let part = Part::of(loaded.table, before);
            let (Part::Row(index) | Part::Version(index)) = part;
            let plan = tables.get_mut(index).ok_or_else(|| {
                Error::internal("a snapshot has a table that its program has not")
            })?;
            if !wanted[index] {
                return Ok(());
            }
            if let Part::Version(_) = part {
                let version = StoredVersion::of(loaded.key, loaded.row);
                let version = version.ok_or_else(|| damaged(plan.from))?;
                if versions.ends_before(index, &version) {
                    tables[versions.table()].versions(&mut versions, count, &mut row, &mut take)?;
                }
                versions.push(index, &version);
                return Ok(());
            }
            if let (Some((convert, requests)), Some(expiries)) = moved {
                if *plan.from.name == *REQUESTS {
                    let rows = convert(&decode(plan.from, loaded.row)?);
                    for (table, of) in [requests, expiries].into_iter().zip(rows.iter().flatten()) {
                        let spec = &program.tables[table];
                        let (key, bytes) = encoded(spec, of);
                        take(TableId(table as u16), partition_of_bytes(spec, &key), &key, &bytes);
                    }
                }
                if is_hidden(&plan.from.name) {
                    return Ok(());
                }
            }
            let Some(to) = &mut plan.to else { return Ok(()) };
            if to.is_same {
                take(to.id, loaded.partition, loaded.key, loaded.row);
            } else if row.convert(plan.from, to, loaded.row, |_| {})? {
                take(to.id, partition_of_bytes(to.spec, &row.key), &row.key, &row.bytes);
            }
            Ok(())
        })?;
        match tables.get_mut(versions.table()) {
            Some(plan) => plan.versions(&mut versions, count, &mut row, &mut take),
            None => Ok(()),
        }
    }

    /// Returns all differences, and the reasons that prevent an upgrade.
    pub(crate) fn found(&self) -> Found {
        let mut found = Found::default();
        let is_made =
            |plan: &&TablePlan<'_>| matches!(plan.from.keeps, Some(EngineUse::Index { .. }));
        for plan in self.tables.iter().filter(|plan| !is_made(plan)) {
            plan.found(&mut found);
        }
        for table in &self.added {
            let upgrade = match table.keeps {
                Some(EngineUse::Index { .. }) => "made of the rows of its table",
                _ => "empty",
            };
            found.push(Change::new("table", "added", &*table.name, upgrade));
        }
        found.extend(self.rest.clone());
        found
    }
}

/// Returns the key and the bytes of a row.
pub(crate) fn encoded(spec: &TableSpec, row: &[tidemill_core::Value]) -> (Vec<u8>, Vec<u8>) {
    let (mut key, mut bytes) = (Vec::new(), Vec::new());
    spec.key.iter().for_each(|column| encode::key(&row[*column], &mut key));
    row.iter().for_each(|value| encode::value(value, &mut bytes));
    (key, bytes)
}

/// Returns the conversion of requests between programs of one app in different ways to run.
fn requests(from: &Program, to: &Program) -> Option<MovedRequests> {
    let columns = |program: &Program| {
        let table = program.tables.iter().find(|table| *table.name == *REQUESTS);
        table.map(|table| table.key.len())
    };
    match (columns(from)?, columns(to)?) {
        (1, 2) => Some(to_several),
        (2, 1) => Some(to_one),
        _ => None,
    }
}

/// Whether the contents of a table are carried over. Indexes are built again, and a window with
/// another shape starts empty.
fn is_kept(from: &Program, table: usize, to: &Program) -> bool {
    let id = TableId(table as u16);
    match from.tables[table].keeps {
        None => true,
        Some(EngineUse::Index { .. }) => false,
        Some(EngineUse::Window) => {
            let mut windows = from.windows.iter();
            let has = |w: &&OwnedWindow| w.table_ids().contains(&id);
            let shape = |w: &OwnedWindow| {
                let form = w.queues == OwnedWindow::NO_QUEUES;
                (form, w.schema.clone(), w.extent, w.group, w.aggregates.clone())
            };
            let Some(window) = windows.find(has) else { return false };
            let now = to.windows.iter().find(|now| now.name == window.name);
            now.is_some_and(|now| shape(now) == shape(window))
        }
    }
}

impl<'a> TableNow<'a> {
    fn of(
        program: &Program,
        index: usize,
        to: &'a Program,
        renames: &Renames,
    ) -> Option<TableNow<'a>> {
        let (from, id) = (&program.tables[index], TableId(index as u16));
        let name = renames.table(&from.name);
        // On several processes the tables of windows are ordinary ones.
        let in_window = program.windows.iter().find_map(|window| {
            let nth = window.table_ids().iter().position(|table| *table == id)?;
            let now = to.windows.iter().find(|now| now.name == window.name)?;
            now.table_ids().get(nth).map(|table| table.index())
        });
        let named = || {
            let is_it = |table: &TableSpec| *table.name == *name && table.keeps == from.keeps;
            to.tables.iter().position(is_it)
        };
        let index = in_window.or_else(named)?;
        let spec = &to.tables[index];
        let names = names_of(&from.schema);
        let names = names.iter().map(|c| renames.column(&from.name, c).to_owned());
        let names: Vec<String> = names.collect();
        let columns = Columns::of(&from.schema, &spec.schema, &names);
        let is_same = columns.is_same()
            && (&from.key, from.partition_prefix) == (&spec.key, spec.partition_prefix);
        Some(TableNow { id: TableId(index as u16), spec, names, columns, is_same })
    }
}

/// A row in conversion.
#[derive(Default)]
struct Encoded {
    key: Vec<u8>,
    bytes: Vec<u8>,
}

impl Encoded {
    /// Converts an old row. Returns `false` when there is no new one, which has been counted.
    /// `head` writes the bytes before the row.
    fn convert(
        &mut self,
        from: &TableSpec,
        to: &mut TableNow<'_>,
        row: &[u8],
        head: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool> {
        let Some(row) = to.columns.row(&decode(from, row)?) else { return Ok(false) };
        self.key.clear();
        self.bytes.clear();
        head(&mut self.bytes);
        to.spec.key.iter().for_each(|column| encode::key(&row[*column], &mut self.key));
        row.iter().for_each(|value| encode::value(value, &mut self.bytes));
        Ok(true)
    }
}

impl TablePlan<'_> {
    /// Converts the retained versions of a row; `count` is the number of tables.
    fn versions(
        &mut self,
        versions: &mut RowVersions,
        count: usize,
        row: &mut Encoded,
        take: &mut impl FnMut(TableId, Partition, &[u8], &[u8]),
    ) -> Result<()> {
        let history = self.from.history.unwrap_or_default();
        versions.finish(history, self.frontier_us, |version| {
            self.versions += 1;
            let keeps = |to: &&mut TableNow<'_>| to.spec.history.is_some();
            let Some(to) = self.to.as_mut().filter(keeps) else { return Ok(()) };
            let put_time = |out: &mut Vec<u8>| StoredVersion::put_time(version.time_us, out);
            if row.convert(self.from, to, version.row, put_time)? {
                let partition = partition_of_bytes(to.spec, &row.key);
                StoredVersion::put_number(version.number, &mut row.key);
                let number = Part::Version(to.id.index()).number(count);
                take(number, partition, &row.key, &row.bytes);
            }
            Ok(())
        })
    }

    fn found(&self, found: &mut Found) {
        // A table may have nothing but versions of rows that are gone.
        let (from, rows) = (self.from, self.rows.max(self.versions));
        let Some(TableNow { spec, names, columns, .. }) = &self.to else {
            let upgrade = match rows {
                0 => "it has no rows".to_owned(),
                _ => format!("its {} are dropped", counted(rows, "row")),
            };
            found.push(Change::new("table", "removed", &*from.name, upgrade).loses(rows > 0));
            return;
        };
        let name = &*spec.name;
        if from.name != spec.name {
            found.push(Change::new("table", "renamed", name, "kept").from(&*from.name));
        }
        let key = |spec: &TableSpec, names: &[String]| {
            let key: Vec<&str> = spec.key.iter().map(|column| &*names[*column]).collect();
            format!("key ({})", key.join(", "))
        };
        let (before, now) = (key(from, names), key(spec, &names_of(&spec.schema)));
        if before != now {
            let upgrade = match rows {
                0 => "it has no rows",
                _ => "it prevents an upgrade",
            };
            let change = Change::new("table", "changed", name, upgrade).loses(rows > 0);
            found.push(change.from(before.clone()).to(now.clone()));
            if rows > 0 {
                found.why.push(format!(
                    "table {name} has rows with the {before}, and a {now}: leave the key as it is, \
                     or give the table with the other key another name"
                ));
            }
        } else if let Some(column) = spec.key.iter().find(|column| columns.rounds(**column)) {
            found.why.push(format!(
                "key column {name}.{} would be rounded, and rows might become one: leave its type \
                 as it is",
                spec.schema.columns[*column].name
            ));
        }
        if from.partition_prefix != spec.partition_prefix {
            let prefix = |spec: &TableSpec| match spec.partition_prefix {
                Some(columns) => format!("partition_prefix {columns}"),
                None => "no partition_prefix".to_owned(),
            };
            let change = Change::new("table", "changed", name, "its rows move to other partitions");
            found.push(change.from(prefix(from)).to(prefix(spec)));
        }
        if from.history != spec.history {
            let is_shorter = is_shorter(from, spec);
            let upgrade = match (is_shorter, self.versions) {
                (false, _) => "it begins with the present rows".to_owned(),
                (true, 0) => "there are no versions".to_owned(),
                (true, _) => "versions beyond it are dropped".to_owned(),
            };
            let change = Change::new("table", "changed", name, upgrade);
            let change = change.loses(is_shorter && self.versions > 0);
            found.push(change.from(shown(from.history)).to(shown(spec.history)));
        }
        let old = &*from.name;
        let owner = Owner { what: "table", name, old, row: "row", rows, held: rows };
        found.extend(columns.found(names, &owner));
    }
}

/// Decodes a row of a snapshot.
pub(crate) fn decode(spec: &TableSpec, mut bytes: &[u8]) -> Result<Row> {
    let columns = spec.schema.columns.iter();
    let row: Option<Row> = columns.map(|c| encode::decode(&c.ty, &mut bytes)).collect();
    row.filter(|_| bytes.is_empty()).ok_or_else(|| damaged(spec))
}

pub(crate) fn damaged(spec: &TableSpec) -> Error {
    Error::new(Kind::Io, format!("table {}: a stored row is damaged", spec.name))
        .help("restore a backup: tidemill restore")
}

/// Notes the changes of handlers. The effects of earlier transactions stay.
fn handlers(from: &Program, to: &Program, renames: &Renames, found: &mut Found) {
    let nothing = Renames::default();
    let by_name = |program: &Program, renames: &Renames| -> BTreeMap<String, Value> {
        let all = program.handlers.iter();
        all.map(|h| (h.name.to_string(), in_words(program, h, renames))).collect()
    };
    let (before, now) = (by_name(from, renames), by_name(to, &nothing));
    for (name, body) in &now {
        let change = match before.get(name) {
            None => Change::new("handler", "added", name, "it takes the events from now on"),
            Some(old) if old != body => {
                Change::new("handler", "changed", name, "its new definition holds from now on")
            }
            Some(_) => continue,
        };
        found.push(change);
    }
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        let upgrade = "its earlier results stay";
        found.push(Change::new("handler", "removed", name, upgrade));
    }
    let order = |program: &Program| -> Vec<String> {
        let names = program.handlers.iter().map(|h| h.name.to_string());
        names.filter(|name| before.contains_key(name) && now.contains_key(name)).collect()
    };
    let (before, now) = (order(from), order(to));
    if let Some((_, moved)) = before.iter().zip(&now).find(|(before, now)| before != now) {
        let upgrade = "handlers take their turns in another order from now on";
        found.push(Change::new("handler", "changed", moved, upgrade));
    }
}

/// A handler as JSON, with names in place of numbers. Numbers change when something is declared
/// before.
fn in_words(program: &Program, handler: &Handler, renames: &Renames) -> Value {
    let mut said = serde_json::to_value(handler).unwrap_or_default();
    forget_lines(&mut said);
    let stream = |id: usize| {
        let stream = program.streams.get(id);
        let columns = stream.map(|s| names_of(&s.spec.schema)).unwrap_or_default();
        (stream.map_or(String::new(), |s| s.spec.name.to_string()), columns)
    };
    let table = |id: usize| {
        let Some(table) = program.tables.get(id) else { return (String::new(), Vec::new()) };
        let columns = names_of(&table.schema);
        let columns = columns.iter().map(|c| renames.column(&table.name, c).to_owned());
        (renames.table(&table.name).to_owned(), columns.collect::<Vec<String>>())
    };
    let number = |value: &Value| value.as_u64().map_or(usize::MAX, |n| n as usize);
    let named = |value: &Value, names: &[String]| match names.get(number(value)) {
        Some(name) => json!(name),
        None => value.clone(),
    };
    let (input, event) = stream(handler.input.index());
    said["input"] = json!(input);
    said["output"] = json!(handler.output.map(|output| stream(output.index())));
    for emitted in said.get_mut("emits").and_then(Value::as_array_mut).into_iter().flatten() {
        *emitted = json!(stream(number(emitted)).0);
    }
    for taken in said.get_mut("more").and_then(Value::as_array_mut).into_iter().flatten() {
        *taken = json!(stream(number(&taken["stream"])).0);
    }
    said["aborted"] = Value::Null;
    said["why"] = Value::Null;
    let Some(declared) = said["body"].get_mut("declared") else {
        // The number of a function says nothing about it.
        said["body"] = match &said["body"] {
            Value::Object(body) => json!(body.keys().next()),
            other => other.clone(),
        };
        return said;
    };
    for node in declared["exprs"].as_array_mut().into_iter().flatten() {
        if let Some(column) = node["expr"].get_mut("column") {
            *column = named(column, &event);
        }
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in declared["rows"].as_array_mut().into_iter().flatten() {
        let (name, columns) = table(number(&row["table"]));
        row["table"] = json!(name);
        rows.push(columns);
    }
    for step in declared["steps"].as_array_mut().into_iter().flatten() {
        let Some((_, op)) = step["op"].as_object_mut().and_then(|op| op.iter_mut().next()) else {
            continue;
        };
        if let Some(emitted) = op.get_mut("stream") {
            *emitted = json!(stream(number(emitted)));
            continue;
        }
        if let Some(ranged) = op.get_mut("table") {
            *ranged = json!(table(number(ranged)).0);
        }
        let columns = op.get("row").and_then(|row| rows.get(number(row))).cloned();
        let columns = columns.unwrap_or_default();
        if let Some(column) = op.get_mut("column") {
            *column = named(column, &columns);
        }
        for pair in op.get_mut("values").and_then(Value::as_array_mut).into_iter().flatten() {
            pair[0] = named(&pair[0], &columns);
        }
    }
    said
}
