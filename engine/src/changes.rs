//! The differences between two versions of a program, for people.

use serde::Serialize;

use crate::requests::is_hidden;

/// The most differences that an error names.
const NAMED_MAX: usize = 5;

/// A difference, and its treatment by an upgrade.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    /// `table`, `column`, `stream`, `handler`, `source` or `sink`.
    what: &'static str,
    /// `added`, `removed`, `renamed`, `widened` or `changed`.
    change: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    upgrade: String,
    lossless: bool,
}

impl Change {
    /// Creates a change that loses nothing.
    pub(crate) fn new(
        what: &'static str,
        change: &'static str,
        name: impl Into<String>,
        upgrade: impl Into<String>,
    ) -> Change {
        let (name, upgrade) = (name.into(), upgrade.into());
        Change { what, change, name, from: None, to: None, upgrade, lossless: true }
    }

    /// Sets the former state.
    pub(crate) fn from(self, from: impl Into<String>) -> Change {
        Change { from: Some(from.into()), ..self }
    }

    /// Sets the new state.
    pub(crate) fn to(self, to: impl Into<String>) -> Change {
        Change { to: Some(to.into()), ..self }
    }

    /// Describes the change in a few words; `None` for parts that the engine adds.
    pub(crate) fn shown(&self) -> Option<String> {
        if is_hidden(&self.name) {
            return None;
        }
        let (what, name) = (self.what, &self.name);
        let shown = match (self.change, &self.from, &self.to) {
            ("added", ..) => format!("{what} {name} is new"),
            ("removed", ..) => format!("{what} {name} is gone"),
            ("renamed", Some(from), _) => format!("{what} {name} was {from}"),
            (_, Some(from), Some(to)) => {
                format!("{what} {name} has changed from {from} to {to}")
            }
            _ => format!("{what} {name} has changed"),
        };
        Some(shown)
    }

    /// Whether it is a source that was added or removed, with a name that ends like this.
    pub(crate) fn is_of_source(&self, end: &str) -> bool {
        let is_there_or_not = matches!(self.change, "added" | "removed");
        self.what == "source" && is_there_or_not && self.name.ends_with(end)
    }

    /// Sets whether the change loses data.
    pub(crate) fn loses(self, something: bool) -> Change {
        Change { lossless: !something, ..self }
    }
}

/// All differences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) changes: Vec<Change>,
    /// The reasons that prevent an upgrade, each with a remedy.
    pub(crate) why: Vec<String>,
}

impl Found {
    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub(crate) fn extend(&mut self, other: Found) {
        self.changes.extend(other.changes);
        self.why.extend(other.why);
    }

    /// Describes the losses, one after the other.
    pub(crate) fn losses(&self) -> Vec<String> {
        let lossy = self.changes.iter().filter(|change| !change.lossless);
        lossy.map(|c| format!("{} {}: {}", c.what, c.name, c.upgrade)).collect()
    }
}

/// Joins the first differences of a list, in words.
pub(crate) fn first_differences(mut named: Vec<String>) -> String {
    let others = named.len().saturating_sub(NAMED_MAX);
    named.truncate(NAMED_MAX);
    if others > 0 {
        named.push(format!("{others} more"));
    }
    named.join("; ")
}

/// A number of things, in words.
pub(crate) fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
