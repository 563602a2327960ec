//! The settings of a cluster. All its processes have the same ones, except for their addresses.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_bytes, put_u128, put_u32, put_u64};
use tidemill_core::{Error, Result};
use tidemill_env::{Addr, Env};
use tidemill_host::Settings as Host;
use tidemill_mesh::{Secret, Tls};
use tidemill_txn::program::{Body, Extent, Handler};

use super::feeds;
use super::program_file::Kept;
use super::sinks::outputs_leave;
use super::topics::{sources, ReadTopic};
use crate::functions::{has_sole_owner, knows_rows};
use crate::settings::OnFault;
use crate::spec::AppSpec;

/// How often a state machine gets the time in a beat.
const TICKS: u64 = 4;
/// The most outputs in a record of the log that the coordinator serves.
pub(super) const TOGETHER: usize = 1 << 14;
/// The approximate most bytes of outputs in a record, in that log and in Kafka. A broker refuses
/// larger records.
const OUTPUT_BYTES: [usize; 2] = [512 << 10, 128 << 10];
/// The default of requests of a source in an epoch: in general, and where none of them can run
/// again.
const EPOCH_ROWS: u64 = 250;
const EPOCH_ROWS_KNOWN: u64 = 2500;
/// The default of events of a source in an epoch that is executed by column.
const EPOCH_ROWS_COLUMNS: u64 = 1 << 15;
/// The most slides of windows by time that the requests of an epoch may cause, by default. An epoch
/// is executed whole once it has begun, and a stop waits for it.
const EPOCH_SLIDES: i64 = 10_000;
/// The shortest secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// The settings of a cluster. Unknown ones are errors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// The cluster's name; by default the app's.
    pub name: Option<String>,
    /// The address that this process listens at.
    pub listen: String,
    /// The address that the other processes use, where it differs.
    pub advertised: Option<String>,
    /// The certificate of this process with its chain, as PEM. With it processes use TLS between
    /// each other.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate, as PEM.
    pub key: Option<PathBuf>,
    /// The certificate of the authority that has signed the certificates of all processes, as PEM.
    pub authority: Option<PathBuf>,
    /// The directory of the coordinator. It has the served log, and the snapshots if no other place
    /// is set.
    pub dir: PathBuf,
    /// Whether the coordinator empties its directory at the start.
    pub fresh: bool,
    /// The log: `kafka://host:port,host:port`, or none for one that the coordinator serves.
    pub log: Option<String>,
    /// The place of the cuts when the log is in Kafka: in Kafka too, or in the coordinator's
    /// directory, where they are durable sooner. It must never change in the life of a log.
    pub cuts: Cuts,
    /// The properties of librdkafka for the log in Kafka, such as `security.protocol`.
    pub log_options: BTreeMap<String, String>,
    /// The replication factor of topics that are created.
    pub log_replication: u16,
    /// The store of snapshots: a directory that all processes see, or `s3://bucket/prefix`.
    pub snapshots: Option<String>,
    /// Whether keys and snapshots may go unencrypted to an S3 store that is not on this machine.
    pub snapshots_allow_http: bool,
    /// The time after which a request to an S3 store has failed, in microseconds.
    pub snapshots_timeout_us: u64,
    /// The number of sources: the ways that requests enter by, each with an order of its own. It
    /// must never change in the life of a log.
    pub sources: u32,
    /// The silence after which a process is given up, in microseconds.
    pub lease_us: u64,
    /// The period of a worker's beats, in microseconds.
    pub beat_us: u64,
    /// The time for a generation to begin, in microseconds. After it the next one is tried.
    pub form_us: u64,
    /// The most requests of a source in an epoch. In longer epochs more requests conflict and run
    /// again, except for those whose rows are known beforehand. The default depends on the program.
    pub epoch_rows_max: Option<u64>,
    /// The most replies, or events of a stream, of an epoch in one message of Kafka. With more than
    /// one, the message is a list.
    pub together: usize,
    /// The largest request, reply or event in the log, in bytes. A larger call is refused, and a
    /// transaction with a larger output aborts.
    ///
    /// A change of it counts as another version of the program, because a replay of the records
    /// could give other results. A log in Kafka has each message in two forms. By default brokers
    /// take messages of up to 1 MB.
    pub message_bytes_max: usize,
    /// The shortest time between snapshots, in microseconds.
    pub snapshot_us: u64,
}

/// The place of the cuts of a log in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cuts {
    /// A topic of their own. The coordinator may be started again on any machine.
    Log,
    /// The coordinator's directory, which must not be lost.
    Coordinator,
}

impl Default for ClusterSettings {
    fn default() -> ClusterSettings {
        ClusterSettings {
            name: None,
            listen: "127.0.0.1:0".into(),
            advertised: None,
            certificate: None,
            key: None,
            authority: None,
            dir: PathBuf::from("cluster.tidemill"),
            log: None,
            cuts: Cuts::Log,
            log_options: BTreeMap::new(),
            log_replication: 1,
            fresh: false,
            snapshots: None,
            snapshots_allow_http: false,
            snapshots_timeout_us: 60_000_000,
            sources: 8,
            lease_us: 2_000_000,
            beat_us: 100_000,
            form_us: 10_000_000,
            epoch_rows_max: None,
            together: 1,
            message_bytes_max: 900_000,
            snapshot_us: 1_000_000,
        }
    }
}

impl ClusterSettings {
    /// The name of the cluster.
    pub(super) fn name(&self, spec: &AppSpec) -> String {
        self.name.clone().unwrap_or_else(|| spec.program.name.to_string())
    }

    /// The settings that the log of a cluster depends on.
    pub(super) fn kept(&self, name: &str) -> Kept {
        let ClusterSettings { sources, message_bytes_max, snapshots, .. } = self.clone();
        let allow_http = self.snapshots_allow_http && snapshots.is_some();
        Kept { name: name.to_owned(), sources, message_bytes_max, snapshots, allow_http }
    }

    /// Returns the checked settings of a process.
    ///
    /// # Errors
    /// When a setting is wrong, with the remedy.
    pub(super) fn host(
        &self,
        spec: &AppSpec,
        topics: &[ReadTopic],
        secret: &[u8],
        env: &Env,
    ) -> Result<Host> {
        let event_time = super::times::event_time(spec, self.sources, topics)?;
        let program = super::executes(spec, self.message_bytes_max, topics, &event_time)?;
        let wrong = |what: String, help: &str| Err(Error::setting(what).help(help.to_owned()));
        let name = self.name(spec);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(fits) {
            let what =
                format!("the cluster's name is '{name}', which can't be a prefix of object names");
            return wrong(what, "set cluster_name to a name of ASCII letters, digits, - and _");
        }
        if secret.len() < SECRET_BYTES_MIN {
            let what = format!("the cluster's secret has {} bytes", secret.len());
            return wrong(
                what,
                "give at least 16 random bytes, for example from `openssl rand -hex 32`",
            );
        }
        if self.sources == 0 || self.sources > 4096 {
            return wrong(format!("cluster_sources is {}", self.sources), "give 1 to 4096");
        }
        if self.beat_us == 0 || self.lease_us < 3 * self.beat_us {
            let what = format!(
                "cluster_lease_us is {}, and cluster_beat_us {}",
                self.lease_us, self.beat_us
            );
            return wrong(what, "give a lease of at least three beats, because one may be late");
        }
        let positive = [
            ("cluster_epoch_rows_max", self.epoch_rows_max.unwrap_or(1)),
            ("cluster_form_us", self.form_us),
            ("cluster_snapshots_timeout_us", self.snapshots_timeout_us),
            ("cluster_together", self.together as u64),
            ("cluster_message_bytes_max", self.message_bytes_max as u64),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, number)| *number == 0) {
            return wrong(format!("{name} is 0"), "give a positive number");
        }
        let listen = address("cluster_listen", &self.listen)?;
        let advertised =
            self.advertised.as_deref().map(|at| address("cluster_advertised", at)).transpose()?;
        let is_open = |at: &Addr| at.tcp().is_ok_and(|at| at.ip().is_unspecified());
        if is_open(&listen) && advertised.is_none() {
            return wrong(
                format!(
                    "cluster_listen is {listen}, which means all addresses, but other processes \
                     need a single one"
                ),
                "set cluster_advertised to the address that they reach",
            );
        }
        Ok(Host {
            cluster: name,
            secret: Secret::new(secret),
            tls: self.tls(env)?,
            app: self.shared(spec, program),
            listen,
            advertised,
            machine: tidemill_cluster::Settings {
                seed: env.random.next_u64(),
                program,
                sources: self.sources + sources(topics) + feeds::count(spec),
                followed: sources(topics) + feeds::count(spec),
                lease_us: self.lease_us,
                beat_us: self.beat_us,
                form_us: self.form_us,
                epoch_max: self.epoch_rows_max.unwrap_or_else(|| epoch_rows(spec)),
                columns_max: self
                    .epoch_rows_max
                    .unwrap_or_else(|| within_slides(spec, EPOCH_ROWS_COLUMNS)),
                has_sole_owner: has_sole_owner(spec),
                alternates: false,
                // Only processes of the cluster read a log that the coordinator serves.
                copies_outputs: outputs_leave(spec),
                outputs_max: if self.log.is_some() { self.together } else { TOGETHER },
                output_bytes: OUTPUT_BYTES[usize::from(self.log.is_some())],
                snapshot_every: 1,
                snapshot_us: self.snapshot_us,
                event_time: event_time.into(),
                resumed: [].into(),
                buffered_bytes_max: spec.settings.buffered_bytes_max as u64,
                stops_on_fault: spec.settings.on_fault == OnFault::Stop && may_fault(spec),
                memory_bytes_max: spec.settings.memory_bytes_max as u64,
                clock_jump_us_max: spec.settings.clock_jump_us_max,
                deaths_max: spec.settings.poison_after,
                function: tidemill_function::Settings {
                    seed: spec.program.seed,
                    output_bytes_max: self.message_bytes_max,
                    strategy: spec.settings.strategy.parse()?,
                    rerun_every: spec.settings.rerun_every,
                    ..tidemill_function::Settings::default()
                },
            },
            tick_us: (self.beat_us / TICKS).max(1_000),
        })
    }
}

/// Whether an app has a function whose faults no client learns of.
fn may_fault(spec: &AppSpec) -> bool {
    let AppSpec { program, .. } = spec;
    let is_called = |handler: &Handler| program.calls.contains(&handler.input);
    let is_function = |handler: &Handler| !matches!(handler.body, Body::Declared(_));
    program.handlers.iter().any(|handler| is_function(handler) && !is_called(handler))
}

impl ClusterSettings {
    /// A hash of everything that all processes must have in common: the program, the code of its
    /// functions, and the places that they share. With other code a function that runs again
    /// elsewhere could give another result. A process with another store would write its part of a
    /// snapshot where recoveries can't find it.
    fn shared(&self, spec: &AppSpec, fingerprint: u128) -> u128 {
        let (mut program, mut codes, mut places) = (Vec::new(), Vec::new(), Vec::new());
        put_u128(fingerprint, &mut program);
        for (function, code) in &spec.codes {
            put_bytes(function.as_bytes(), &mut codes);
            put_bytes(code.as_bytes(), &mut codes);
        }
        put_u32(self.sources, &mut places);
        // All of them divide epochs into the same parts.
        put_u64(self.epoch_rows_max.unwrap_or(0), &mut places);
        places.push(self.log.is_some().into());
        // Brokers and directories may have other names on other machines.
        let bucket = self.snapshots.as_deref().filter(|at| at.contains("://"));
        put_bytes(bucket.unwrap_or_default().as_bytes(), &mut places);
        let part = |bytes: &[u8], shift: u32| hash128(bytes) >> (128 - shift);
        // A refused process learns which part differs.
        part(&program, 64) << 64 | part(&codes, 32) << 32 | part(&places, 32)
    }

    /// Opens the certificates, if there are some.
    fn tls(&self, env: &Env) -> Result<Option<Tls>> {
        let found = [&self.certificate, &self.key, &self.authority].map(Option::as_deref);
        match found {
            [None, None, None] => Ok(None),
            [Some(certificate), Some(key), Some(authority)] => {
                Tls::open(env, certificate, key, authority).map(Some)
            }
            _ => {
                let names = ["cluster_certificate", "cluster_key", "cluster_authority"];
                let named = |is_given: bool| -> Vec<&str> {
                    let all = names.iter().zip(found);
                    all.filter(|(_, at)| at.is_some() == is_given).map(|(name, _)| *name).collect()
                };
                let (given, missing) = (named(true).join(" and "), named(false).join(" and "));
                Err(Error::setting(format!("{given} without {missing}")).help(
                    "give all three: with TLS each process shows its certificate, and checks those \
                     of the others against the authority",
                ))
            }
        }
    }
}

/// Parses the address in a setting.
pub(super) fn address(setting: &str, text: &str) -> Result<Addr> {
    text.parse().map_err(|_| {
        Error::setting(format!("{setting} is '{text}', which is not an address"))
            .help("give one with a port, such as 127.0.0.1:7400, or with port 0 for a free one")
    })
}

/// The default of requests of a source in an epoch. Where one worker executes them in their order,
/// none runs again. If functions ask outside, all of an epoch wait for the answers.
fn epoch_rows(spec: &AppSpec) -> u64 {
    match knows_rows(spec) || (has_sole_owner(spec) && !spec.asks_outside) {
        true => within_slides(spec, EPOCH_ROWS_KNOWN),
        false => EPOCH_ROWS,
    }
}

/// Limits a number of requests, so that they slide windows by time a limited number of times.
fn within_slides(spec: &AppSpec, rows_max: u64) -> u64 {
    let slides = spec.program.windows.iter().filter_map(|window| match window.extent {
        Extent::Time { size_us, slide_us } => Some((size_us - 1) / slide_us + 1),
        Extent::Rows { .. } => None,
    });
    let rows = |slides: i64| u64::try_from(EPOCH_SLIDES / slides).unwrap_or(0).max(1);
    slides.map(rows).fold(rows_max, u64::min)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{json, Value};
    use tidemill_core::{Column, DataType};
    use tidemill_sim::SimEnv;
    use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

    use super::*;
    use crate::spec::SourceDecl;
    use crate::Settings;

    const PAGE: &str = include_str!("../../../docs/reference/settings.md");
    const SECRET: [u8; 16] = [7; 16];

    /// The defaults in the reference, by setting.
    fn documented() -> BTreeMap<String, String> {
        let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
        let named =
            cells.map(|cells| (cells[0].trim_matches(['|', ' ', '`']).to_owned(), cells[1]));
        named.map(|(name, default)| (name, default.trim().to_owned())).collect()
    }

    /// The text of the reference for a default.
    fn shown(name: &str, default: &Value) -> String {
        match (name, default) {
            ("listen", Value::String(at)) => at.trim_end_matches(":0").into(),
            // It follows from `cluster_listen`.
            ("advertised", Value::Null) => "127.0.0.1".into(),
            ("name", Value::Null) => "the app's".into(),
            ("log", Value::Null) => "served".into(),
            ("log_options", Value::Object(none)) if none.is_empty() => "none".into(),
            ("snapshots", Value::Null) => "in the data directory".into(),
            (_, Value::Null) => "none".into(),
            (_, Value::Number(number)) => {
                let digits = number.to_string();
                let grouped = digits.as_bytes().rchunks(3).rev();
                let grouped = grouped.map(|group| String::from_utf8_lossy(group).into_owned());
                grouped.collect::<Vec<_>>().join(",")
            }
            (_, other) => other.to_string().trim_matches('"').into(),
        }
    }

    #[test]
    fn defaults_are_those_of_the_page() {
        let mut documented = documented();
        assert_eq!(documented.remove("buffered_bytes_max").as_deref(), Some("256 MiB"));
        documented.retain(|name, _| name.starts_with("cluster_"));
        assert_eq!(documented.remove("cluster_epoch_rows_max").as_deref(), Some("250"));
        assert_eq!(Settings::default().buffered_bytes_max, 256 << 20);
        // The secret comes from a file, and has no default.
        assert_eq!(documented.remove("cluster_secret_file").as_deref(), Some("none"));
        let Value::Object(mut own) = json!(ClusterSettings::default()) else { panic!("no object") };
        assert_eq!(own.remove("epoch_rows_max"), Some(Value::Null));
        // These have no prefix.
        assert!(own.remove("dir").is_some() && own.remove("fresh") == Some(json!(false)));
        let own: BTreeMap<String, String> = own
            .iter()
            .map(|(name, value)| (format!("cluster_{name}"), shown(name, value)))
            .collect();
        assert_eq!(documented, own);
    }

    /// Does nothing.
    struct Idle;

    impl Opaque for Idle {
        fn call(
            &self,
            _: &[tidemill_core::Value],
            _: &mut dyn Tx,
        ) -> std::result::Result<(), Abort> {
            Ok(())
        }
    }

    fn program(has_function: bool) -> Program {
        let int = |name: &str| Column::new(name, DataType::Int);
        let mut b = Builder::new("app");
        let n = int("n").default(tidemill_core::Value::Int(0));
        let table = b.table("t", &["k"], vec![int("k"), n]);
        let events = b.stream("events", vec![int("k"), int("n")]);
        let mut h = b.handler("keep", events);
        let (k, n) = (h.column("k"), h.column("n"));
        let row = h.row(table, &[k]);
        h.set(row, "n", n);
        h.done();
        if has_function {
            b.opaque("idle", events, Arc::new(Idle));
        }
        b.finish().unwrap()
    }

    fn machine(settings: &ClusterSettings, has_function: bool) -> tidemill_cluster::Settings {
        let sources = vec![SourceDecl::pushed("events")];
        let spec = AppSpec::new(program(has_function), sources, Settings::default());
        settings.host(&spec, &[], &SECRET, &SimEnv::new(1).env()).unwrap().machine
    }

    #[test]
    fn an_epoch_is_shorter_where_rows_slide_windows_often() {
        let rows = |size_us: i64, slide_us: i64| {
            let mut b = Builder::new("app");
            let events = b.stream("events", vec![Column::new("k", DataType::Int)]);
            let owner = b.opaque("idle", events, Arc::new(Idle));
            let extents = [
                ("count", Extent::Rows { size: 1 << 20, slide: 1 }),
                ("minute", Extent::Time { size_us: 60, slide_us: 60 }),
                ("given", Extent::Time { size_us, slide_us }),
            ];
            for (name, extent) in extents {
                b.window(name, owner, extent, vec![Column::new("k", DataType::Int)], None, &[]);
            }
            let sources = vec![SourceDecl::pushed("events")];
            epoch_rows(&AppSpec::new(b.finish().unwrap(), sources, Settings::default()))
        };
        let found = [(60, 60), (40, 1), (41, 1), (82, 2), (3_600, 1), (100_000, 1)];
        let found = found.map(|(size_us, slide_us)| rows(size_us, slide_us));
        assert_eq!(found, [2_500, 250, 243, 243, 2, 1]);
    }

    #[test]
    fn an_epoch_is_longer_where_all_is_declared_and_rows_follow_from_the_event() {
        let words = "2,500 where all transactions are declared with keys from the event";
        assert!(PAGE.lines().any(
            |row| row.starts_with("| `cluster_epoch_rows_max` | 250 |") && row.contains(words)
        ));
        let settings = ClusterSettings::default();
        let found = [true, false].map(|has_function| machine(&settings, has_function).epoch_max);
        assert_eq!(found, [250, 2_500]);
        let settings = ClusterSettings { epoch_rows_max: Some(7), ..settings };
        let found = [true, false].map(|has_function| machine(&settings, has_function).epoch_max);
        assert_eq!(found, [7, 7]);
    }

    /// The effects of these settings are tested elsewhere: those of generations, cuts and snapshots
    /// in `cluster/tests/coordinator.rs`.
    #[test]
    fn settings_are_those_of_the_machines() {
        let settings = ClusterSettings {
            sources: 3,
            lease_us: 4_000_000,
            beat_us: 5_000,
            form_us: 6_000,
            message_bytes_max: 7_000,
            snapshot_us: 8_000,
            together: 10,
            log: Some("kafka://localhost:9092".into()),
            ..ClusterSettings::default()
        };
        let found = machine(&settings, true);
        assert_eq!((found.sources, found.lease_us, found.beat_us), (3, 4_000_000, 5_000));
        assert_eq!((found.form_us, found.function.output_bytes_max), (6_000, 7_000));
        assert_eq!((found.snapshot_every, found.snapshot_us), (1, 8_000));
        assert_eq!(found.outputs_max, 10);
        // Only processes of the cluster read a log that the coordinator serves.
        let served = ClusterSettings { log: None, ..settings };
        assert_eq!(machine(&served, true).outputs_max, TOGETHER);
    }
}
