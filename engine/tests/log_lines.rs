//! The lines of the log: which events, and in which form.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tidemill_engine::{log_filter, log_lines, LogFormat, LOG_TARGETS};
use tidemill_sim::SimEnv;
use tracing::dispatcher::with_default;
use tracing::{debug, info, trace, warn, Dispatch};

/// Lines that others may read.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

fn logged(filter: &str, format: LogFormat, body: impl FnOnce()) -> Vec<String> {
    let (written, sim) = (Written::default(), SimEnv::new(1));
    let log = log_lines(sim.env().clock, filter, format, Box::new(written.clone())).unwrap();
    with_default(&log, body);
    written.lines()
}

fn events(filter: &str) -> Vec<String> {
    let lines = logged(filter, LogFormat::Json, || {
        warn!(target: "tidemill::sink", "a");
        info!(target: "tidemill::sink", "b");
        debug!(target: "tidemill::source", "c");
        trace!(target: "tidemill::engine", "d");
        warn!(target: "hyper", "of a library");
    });
    let event = |line: String| serde_json::from_str::<Value>(&line).unwrap()["event"].clone();
    lines.into_iter().map(event).map(|event| event.as_str().unwrap().to_owned()).collect()
}

#[test]
fn directives_choose_levels_by_target() {
    assert_eq!(events("trace"), ["a", "b", "c", "d"]);
    assert_eq!(events("INFO"), ["a", "b"]);
    assert_eq!(events("warn, tidemill::source=debug"), ["a", "c"]);
    assert_eq!(events("tidemill=debug,tidemill::sink=off"), ["c"]);
    assert_eq!(events("off,tidemill::engine"), ["d"]);
    assert_eq!(events("tidemill::sink=info"), ["a", "b"]);
}

#[test]
fn wrong_directives_are_refused_by_name() {
    for (text, what) in [
        ("inof", "'inof' is neither a level nor a target: did you mean 'info'?"),
        ("sink=debug", "'sink' is not a target: did you mean 'tidemill::sink'?"),
        ("info,tidemill::kafak=debug", "did you mean 'tidemill::kafka'?"),
        ("tidemill::sink=loud", "'loud' is not a level"),
        ("tidemill::sink=", "'' is not a level"),
        ("hyper=trace", "'hyper' is not a target"),
        ("info,", "'' is neither a level nor a target"),
    ] {
        let refused = log_filter(text).unwrap_err();
        assert!(refused.what.contains(what), "{text}: {refused}");
        assert!(refused.help.contains("info,tidemill::sink=debug"), "{refused}");
    }
}

#[test]
fn an_event_is_one_line_in_either_format() {
    let say = || {
        let none: Option<&str> = None;
        let (what, changes) = ("two\nlines \"x\"", r#"[{"name":"t"}]"#);
        warn!(target: "tidemill::sink", what, n = 3, none, changes, plain = "out/a.csv", "waits");
    };
    let [json] = <[String; 1]>::try_from(logged("info", LogFormat::Json, say)).unwrap();
    let begin = r#"","level":"warn","target":"tidemill::sink","event":"waits","what":"#;
    let end = r#""two\nlines \"x\"","n":3,"changes":[{"name":"t"}],"plain":"out/a.csv"}"#;
    assert!(json.starts_with(r#"{"at":"#) && json.ends_with(&format!("{begin}{end}")), "{json}");
    let [text] = <[String; 1]>::try_from(logged("info", LogFormat::Text, say)).unwrap();
    let end = r#" WARN tidemill::sink: waits what="two\nlines \"x\"" n=3 changes=[{"name":"t"}] plain=out/a.csv"#;
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn every_reported_target_is_listed_and_documented() {
    let guide = include_str!("../../docs/guides/operate.md");
    for (target, _) in LOG_TARGETS {
        assert!(guide.contains(&format!("| `{target}` |")), "{target} is not in the guide");
    }
}

/// A thread that reports first, and has no log itself, must not silence the others' logs.
#[test]
fn a_thread_without_a_log_silences_nobody() {
    let lines = logged("info", LogFormat::Json, || {
        let report = || info!(target: "tidemill::engine", "seen");
        with_default(&Dispatch::none(), report);
        report();
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
}
