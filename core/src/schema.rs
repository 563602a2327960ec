//! Schemas of streams and tables, and the time of a program's streams.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{nearest, Error, Result};
use crate::ids::{StreamId, TableId};
use crate::types::DataType;
use crate::value::Value;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The name, unique in the schema.
    pub name: Arc<str>,
    /// The type.
    #[serde(rename = "type")]
    pub ty: DataType,
    /// Whether it may be null.
    #[serde(default)]
    pub nullable: bool,
    /// The value in a missing row, and in a row that was created without a value for this column.
    #[serde(default)]
    pub default: Option<Value>,
}

impl Column {
    /// Creates a column without a default that may not be null.
    pub fn new(name: &str, ty: DataType) -> Column {
        Column { name: name.into(), ty, nullable: false, default: None }
    }

    /// Makes the column nullable.
    pub fn nullable(mut self) -> Column {
        self.nullable = true;
        self
    }

    /// Sets the default.
    pub fn default(mut self, value: Value) -> Column {
        self.default = Some(value);
        self
    }
}

/// The columns of a stream or a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema {
    /// The columns, in declaration order.
    pub columns: Vec<Column>,
}

impl Schema {
    /// Creates a schema of these columns.
    pub fn new(columns: Vec<Column>) -> Schema {
        Schema { columns }
    }

    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the index of the column with this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| &*c.name == name)
    }

    /// Returns the index of the column with this name, or an error that names the nearest one.
    ///
    /// `owner` is the owner of the column for the error ("table accounts").
    pub fn find(&self, owner: &str, name: &str) -> Result<usize> {
        self.index_of(name).ok_or_else(|| {
            let names: Vec<&str> = self.columns.iter().map(|c| &*c.name).collect();
            let error = Error::program(format!("{owner} has no column '{name}'"));
            match nearest(name, names.iter().copied()) {
                Some(near) => error.help(format!("did you mean '{near}'?")),
                None => error.help(format!("its columns are {}", names.join(", "))),
            }
        })
    }

    /// Checks the schema. Refuses one without columns, with equal names, or with a wrong default or
    /// scale.
    pub fn check(&self, owner: &str) -> Result<()> {
        if self.columns.is_empty() {
            return Err(Error::program(format!("{owner} has no columns"))
                .help("give at least one, for example id=int"));
        }
        for (i, column) in self.columns.iter().enumerate() {
            if self.columns[..i].iter().any(|c| c.name == column.name) {
                let name = &column.name;
                return Err(Error::program(format!("{owner} has two columns named '{name}'")));
            }
            check_scale(&column.ty)
                .map_err(|e| Error::program(format!("{owner}, column '{}': {e}", column.name)))?;
            if let Some(default) = &column.default {
                crate::rules::store(default, column).map_err(|fault| {
                    let name = &column.name;
                    Error::program(format!("{owner}: the default of column '{name}': {fault}"))
                })?;
            }
        }
        Ok(())
    }
}

fn check_scale(ty: &DataType) -> Result<(), String> {
    match ty {
        DataType::Decimal(scale) if *scale > DataType::SCALE_MAX => {
            Err(format!("a decimal's scale is 0 to {}, not {scale}", DataType::SCALE_MAX))
        }
        DataType::List(inner) => check_scale(inner),
        _ => Ok(()),
    }
}

/// The treatment of an event that arrives after its cut's watermark has passed its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// It goes to the late side stream, where it is counted and can be queried.
    #[default]
    Side,
    /// It is executed at the cut, after everything before.
    Admit,
    /// The run ends with an error that names it.
    Error,
}

/// The origin of a stream's times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamTime {
    /// A column of type timestamp, int (in any unit) or decimal.
    Event {
        /// The index of the column.
        column: usize,
    },
    /// The cut that takes the event.
    #[default]
    Arrival,
}

/// A stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// The name, unique among the streams.
    pub name: Arc<str>,
    /// The columns.
    pub schema: Arc<Schema>,
    /// The time. Derived streams take the stamp of their cause instead.
    #[serde(default)]
    pub time: StreamTime,
    /// The treatment of late events.
    #[serde(default)]
    pub late: Late,
    /// The user's line, as `file:line`.
    #[serde(default)]
    pub at: String,
}

/// A source partition of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// The declared name plus the log partition, for example a file's place in its stream's list.
    pub name: Arc<str>,
    /// The stream that the source feeds.
    pub stream: StreamId,
    /// The span by which an event may be behind the newest event time of the source, in
    /// microseconds. If the time column is an int or a decimal, the unit is that of the column.
    #[serde(default, rename = "disorder_us")] // Earlier versions stored this name.
    pub out_of_orderness_us: i64,
    /// The time without input, in microseconds, after which the source no longer holds back the
    /// watermark. If absent, it always holds it back.
    #[serde(default)]
    pub idle_us: Option<i64>,
}

/// The retention of versions of a table's rows, for windows. A version is retained as long as one
/// of the two bounds requires it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The age below which versions are retained, in microseconds of event time. If the time column
    /// is an int, the unit is that of the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_us: Option<i64>,
    /// The number of newest versions of each row that are retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<u64>,
}

impl History {
    /// The largest number of versions to retain: they are numbered with 32 bits.
    pub const VERSIONS_MAX: u64 = 1 << 30;

    /// Returns the time of the oldest version that is retained by time, if nothing older than
    /// `frontier_us` can arrive any more.
    pub fn retained_from(&self, frontier_us: i64) -> Option<i64> {
        self.time_us.map(|time_us| frontier_us.saturating_sub(time_us - 1))
    }

    fn check(&self, owner: &str) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::program(format!("{owner}: {what}"))
                .help("say history=\"1h\" (by time), history=1000 (by count) or both, as a tuple"))
        };
        match (self.time_us, self.versions) {
            (None, None) => wrong("its history retains nothing".into()),
            (Some(us), _) if us <= 0 => wrong(format!("a history of {us} us retains nothing")),
            (_, Some(n)) if n == 0 || n > History::VERSIONS_MAX => wrong(format!(
                "a history has 1 to {} versions of a row, not {n}",
                History::VERSIONS_MAX
            )),
            _ => Ok(()),
        }
    }
}

/// The use of a table that the engine maintains itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum EngineUse {
    /// An index: the rows of another table by some of its columns.
    ///
    /// Its columns are these columns, then the key of the other table. All of them are its key, or
    /// only the former if they are unique.
    Index {
        /// The indexed table.
        of: TableId,
        /// The indexed columns. Rows with a null in one of them are left out.
        columns: Vec<usize>,
    },
    /// The rows of a window that belongs to a procedure, or the state of that window.
    Window,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSpec {
    /// The name, unique among the tables.
    pub name: Arc<str>,
    /// The indices of the key columns, in key order. There is at least one.
    pub key: Vec<usize>,
    /// All columns, including the key columns.
    pub schema: Arc<Schema>,
    /// The number of leading key columns that choose a row's partition, so that rows with one
    /// prefix live together. If absent, all key columns do.
    #[serde(default)]
    pub partition_prefix: Option<usize>,
    /// The retention of versions of the rows. If absent, they are retained only as long as an epoch
    /// needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// Whether the rows can be read by ranges of keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// The engine's own use of the table. If present, programs may not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<EngineUse>,
    /// The user's line, as `file:line`.
    #[serde(default)]
    pub at: String,
}

impl TableSpec {
    /// Creates a table whose rows are partitioned by their whole key.
    pub fn new(name: &str, key: Vec<usize>, schema: Arc<Schema>) -> TableSpec {
        let (partition_prefix, history, ordered, keeps) = (None, None, false, None);
        TableSpec {
            name: name.into(),
            key,
            schema,
            partition_prefix,
            history,
            ordered,
            keeps,
            at: String::new(),
        }
    }

    /// Checks the declaration of the table.
    pub fn check(&self) -> Result<()> {
        let owner = format!("table {}", self.name);
        let check = || {
            self.schema.check(&owner)?;
            if self.key.is_empty() {
                return Err(Error::program(format!("{owner} has no key"))
                    .help("say key=\"column\", or key=(\"a\", \"b\") for several columns"));
            }
            if self.partition_prefix.is_some_and(|n| n == 0 || n > self.key.len()) {
                return Err(Error::program(format!(
                    "{owner}: partition_prefix is a number of leading key columns, 1 to {}",
                    self.key.len()
                )));
            }
            self.history.map_or(Ok(()), |history| history.check(&owner))?;
            for (i, &column) in self.key.iter().enumerate() {
                let Some(spec) = self.schema.columns.get(column) else {
                    return Err(Error::program(format!(
                        "{owner}: the key names column number {column}, which does not exist"
                    )));
                };
                let name = &spec.name;
                if self.key[..i].contains(&column) {
                    return Err(Error::program(format!("{owner} has '{name}' in its key twice")));
                }
                if spec.nullable || spec.default.is_some() {
                    return Err(Error::program(format!(
                        "{owner}: key column '{name}' may neither be null nor have a default"
                    )));
                }
                if !spec.ty.is_ordered() {
                    return Err(Error::program(format!(
                        "{owner}: key column '{name}' is {}, which can't be part of a key",
                        spec.ty
                    )));
                }
            }
            Ok(())
        };
        check().map_err(|e| e.at(self.at.clone()))
    }

    /// Whether `column` is part of the key.
    pub fn is_key(&self, column: usize) -> bool {
        self.key.contains(&column)
    }

    /// Returns the row that stands for a missing one: its key, and each column's default or else
    /// null.
    pub fn missing_row(&self, key: &[Value]) -> Vec<Value> {
        // A default is stored as its column has it: an int may be given for a decimal.
        let default = |c: &Column| {
            c.default.as_ref().and_then(|v| crate::rules::store(v, c).ok()).unwrap_or(Value::Null)
        };
        let mut row: Vec<Value> = self.schema.columns.iter().map(default).collect();
        for (value, &column) in key.iter().zip(&self.key) {
            row[column] = value.clone();
        }
        row
    }
}
