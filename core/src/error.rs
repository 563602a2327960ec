//! Errors. A kind says what the caller must do. The text says what is wrong, why, and how to mend
//! it.

use std::fmt;

/// The action that an error asks of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Mend the program: a wrong declaration, type, name or key.
    Program,
    /// Mend a setting, a flag or the configuration file.
    Setting,
    /// Mend or replace the input; the program is right.
    Input,
    /// Free or grant something: memory, disk, a file that another process holds.
    Resource,
    /// Check the environment: a file or a connection could not be read or written.
    Io,
    /// Report it: Tidemill broke one of its own guarantees.
    Internal,
}

impl Kind {
    /// Returns the kind's name, as in the Python class and the JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Program => "ProgramError",
            Kind::Setting => "SettingError",
            Kind::Input => "InputError",
            Kind::Resource => "ResourceError",
            Kind::Io => "IoError",
            Kind::Internal => "InternalError",
        }
    }
}

/// An error of Tidemill. Transaction aborts are outcomes, never errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The action that the error asks of the caller.
    pub kind: Kind,
    /// The failure and its reason.
    pub what: String,
    /// The way to mend it. Empty if `what` says it all.
    pub help: String,
    /// The user's line at fault, as `file:line`, if there is one.
    pub at: Option<String>,
}

impl Error {
    /// Creates an error of `kind` with the text `what`.
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error { kind, what: what.into(), help: String::new(), at: None }
    }

    /// Creates an error about a wrong program.
    pub fn program(what: impl Into<String>) -> Error {
        Error::new(Kind::Program, what)
    }

    /// Creates an error about a wrong setting.
    pub fn setting(what: impl Into<String>) -> Error {
        Error::new(Kind::Setting, what)
    }

    /// Creates an error about wrong input.
    pub fn input(what: impl Into<String>) -> Error {
        Error::new(Kind::Input, what)
    }

    /// Creates an error about a resource that ran out or is taken.
    pub fn resource(what: impl Into<String>) -> Error {
        Error::new(Kind::Resource, what)
    }

    /// Creates an error about failed IO on the thing that `what` names.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Error {
        Error::new(Kind::Io, format!("{what}: {error}"))
    }

    /// Creates an error about a broken guarantee of Tidemill itself.
    pub fn internal(what: impl Into<String>) -> Error {
        Error::new(Kind::Internal, what)
            .help("this is a bug in Tidemill; please report it with the program and its input")
    }

    /// Adds the way to mend it.
    pub fn help(mut self, help: impl Into<String>) -> Error {
        self.help = help.into();
        self
    }

    /// Adds the user's line.
    pub fn at(mut self, at: impl Into<String>) -> Error {
        let at = at.into();
        if self.at.is_none() && !at.is_empty() {
            self.at = Some(at);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "{at}: ")?;
        }
        f.write_str(&self.what)?;
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A result with Tidemill's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the name among `known` that `given` was probably meant to be.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (edit_distance(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.chars().count() / 4)
        .min()
        .map(|(_, name)| name)
}

/// The number of changes between two words: of characters that are added, missing, replaced, or
/// swapped with the next one.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(ca != cb);
            let mut changes = replaced.min(row[j] + 1).min(rows[i][j + 1] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                changes = changes.min(rows[i - 1][j - 1] + 1);
            }
            row.push(changes);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_line_and_help() {
        let error =
            Error::program("no column 'balanse'").help("did you mean 'balance'?").at("a.py:3");
        assert_eq!(
            error.to_string(),
            "a.py:3: no column 'balanse'\n  help: did you mean 'balance'?"
        );
    }

    #[test]
    fn nearest_name() {
        assert_eq!(nearest("balanse", ["id", "balance"]), Some("balance"));
        assert_eq!(nearest("rnu", ["new", "run"]), Some("run"));
        assert_eq!(nearest("zzz", ["id", "balance"]), None);
    }
}
