//! Schemas of streams and tables, and what a program says of its streams' time.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{nearest, Error, Result};
use crate::ids::{StreamId, TableId};
use crate::types::DataType;
use crate::value::Value;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, unique in the schema.
    pub name: Arc<str>,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: DataType,
    /// Whether it may be null.
    #[serde(default)]
    pub nullable: bool,
    /// What a missing row has here, and what a row gets that was made without a value for it.
    #[serde(default)]
    pub default: Option<Value>,
}

impl Column {
    /// A column without default that may not be null.
    pub fn new(name: &str, ty: DataType) -> Column {
        Column { name: name.into(), ty, nullable: false, default: None }
    }

    /// May be null.
    pub fn nullable(mut self) -> Column {
        self.nullable = true;
        self
    }

    /// Has a default.
    pub fn default(mut self, value: Value) -> Column {
        self.default = Some(value);
        self
    }
}

/// The columns of a stream or a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema {
    /// In declaration order.
    pub columns: Vec<Column>,
}

impl Schema {
    /// A schema of these columns.
    pub fn new(columns: Vec<Column>) -> Schema {
        Schema { columns }
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Index of the column with this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| &*c.name == name)
    }

    /// Index of the column with this name, or an error that names the nearest one. `owner` says
    /// whose column it should be ("table accounts").
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

    /// Refuses what can't be a schema: no columns, equal names, a wrong default or scale.
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

/// What happens to an event that comes after its cut's watermark has passed its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// It goes to the late side stream: counted and queryable.
    #[default]
    Side,
    /// It is executed at the cut, after everything before.
    Admit,
    /// The run ends with an error that names it.
    Error,
}

/// Where a stream's times come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamTime {
    /// From a column of type timestamp, int (any unit the user likes) or decimal.
    Event {
        /// Index of the column.
        column: usize,
    },
    /// From the cut that takes the event in.
    #[default]
    Arrival,
}

/// A stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Its name, unique among the streams.
    pub name: Arc<str>,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// Its time; derived streams take their cause's stamp instead.
    #[serde(default)]
    pub time: StreamTime,
    /// What happens to late events.
    #[serde(default)]
    pub late: Late,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// A source partition of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// Declared name plus log partition: a file's place in its stream's list, say.
    pub name: Arc<str>,
    /// The stream it feeds.
    pub stream: StreamId,
    /// How far behind the newest event time an event may come, in microseconds (in the unit of
    /// the time column when that is an int or a decimal).
    #[serde(default)]
    pub disorder_us: i64,
    /// After this long without input, in microseconds, the source no longer holds back the
    /// watermark; never when absent.
    #[serde(default)]
    pub idle_us: Option<i64>,
}

/// How long a table keeps the versions of its rows, so that windows can be read over them: a version
/// is kept as long as either wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Versions that are younger than this, in microseconds of event time (in the unit of the time
    /// column when that is an int).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_us: Option<i64>,
    /// So many newest versions of each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<u64>,
}

impl History {
    /// The most versions that may be kept by count: they are numbered with 32 bits.
    pub const VERSIONS_MAX: u64 = 1 << 30;

    /// The time of the oldest version that is kept by time when nothing older than `frontier_us`
    /// can come any more.
    pub fn kept_from(&self, frontier_us: i64) -> Option<i64> {
        self.time_us.map(|time_us| frontier_us.saturating_sub(time_us - 1))
    }

    fn check(&self, owner: &str) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::program(format!("{owner}: {what}"))
                .help("say history=\"1h\" (by time), history=1000 (by count) or both, as a tuple"))
        };
        match (self.time_us, self.versions) {
            (None, None) => wrong("its history keeps nothing".into()),
            (Some(us), _) if us <= 0 => wrong(format!("a history of {us} us keeps nothing")),
            (_, Some(n)) if n == 0 || n > History::VERSIONS_MAX => wrong(format!(
                "a history has 1 to {} versions of a row, not {n}",
                History::VERSIONS_MAX
            )),
            _ => Ok(()),
        }
    }
}

/// What the engine keeps in a table of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Keeps {
    /// The rows of another table by some of its columns. Its columns are those, then the key of the
    /// other table; all of them are its key, or only the former when they are unique.
    Index {
        /// The other table.
        of: TableId,
        /// Its columns. Rows with a null in one of them are not there.
        columns: Vec<usize>,
    },
    /// Rows of a window that belongs to a procedure, or what it knows of them.
    Window,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its name, unique among the tables.
    pub name: Arc<str>,
    /// Indices of its key columns, in key order; at least one.
    pub key: Vec<usize>,
    /// All its columns, key columns included.
    pub schema: Arc<Schema>,
    /// So many leading key columns choose a row's partition, so that rows with one prefix live
    /// together; all of them when absent.
    #[serde(default)]
    pub partition_prefix: Option<usize>,
    /// How long versions of its rows are kept; only as long as an epoch needs them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// Whether its rows can be read by ranges of keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// What the engine keeps in it, if programs may not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<Keeps>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

impl TableSpec {
    /// A table whose rows are partitioned by their whole key.
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

    /// Refuses what can't be a table.
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
                        "{owner}: key column {column} is not there"
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
                        "{owner}: a {} can't be a key column ('{name}')",
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

    /// The row that stands for a missing one: its key, each column's default, else null.
    pub fn missing_row(&self, key: &[Value]) -> Vec<Value> {
        // A default is stored as its column has it: an int may stand for a decimal.
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
