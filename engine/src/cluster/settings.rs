//! What may be chosen of a cluster. All its processes are given the same, but for where they listen.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_bytes, put_u128, put_u32};
use tidemill_core::{Error, Result};
use tidemill_env::{Addr, Env};
use tidemill_host::Settings as Host;
use tidemill_kafka::Followed;
use tidemill_mesh::{Peer, Secret, Tls};
use tidemill_txn::program::Extent;

use super::feeds;
use super::topics::sources;
use crate::functions::knows_rows;
use crate::spec::AppSpec;

/// A machine is told the time so often in a beat.
const TICKS: u64 = 4;
/// So many outputs are a record of the log that the coordinator serves, at most.
pub(super) const TOGETHER: usize = 256;
/// So many requests of a source are in an epoch where nothing else is said; and where none of them runs again.
const EPOCH_ROWS: u64 = 250;
const EPOCH_ROWS_KNOWN: u64 = 2500;
/// So often these requests may slide a window by time. An epoch that has begun is executed whole, and a stop waits for it.
const EPOCH_SLIDES: i64 = 10_000;
/// Bytes of a secret, at least.
const SECRET_BYTES_MIN: usize = 16;

/// Settings of a cluster. Unknown ones are errors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// Its name; the app's where none is given.
    pub name: Option<String>,
    /// Where this process listens for the others.
    pub listen: String,
    /// Where the others reach it, where that is elsewhere.
    pub advertised: Option<String>,
    /// The certificate of this process with its chain, as PEM. With it processes speak TLS to each other.
    pub certificate: Option<PathBuf>,
    /// Its private key, as PEM.
    pub key: Option<PathBuf>,
    /// The certificate of the authority that has signed those of all processes of the cluster, as PEM.
    pub authority: Option<PathBuf>,
    /// The coordinator's directory, with the log that it serves, and snapshots that are nowhere else.
    pub dir: PathBuf,
    /// Begins anew: what is in the directory goes. Of the coordinator.
    pub fresh: bool,
    /// Where the log is: `kafka://host:port,host:port`, or nothing for the one that the coordinator serves.
    pub log: Option<String>,
    /// Where the cuts are, when the log is in Kafka: with it, or in the coordinator's directory, where they are
    /// durable sooner. Never another place in the life of a log.
    pub cuts: Cuts,
    /// Properties of librdkafka for the log in Kafka, as `security.protocol`.
    pub log_options: BTreeMap<String, String>,
    /// On how many brokers topics are kept that are made.
    pub log_replication: u16,
    /// Where snapshots are stored: a directory that all processes see, or `s3://bucket/prefix`.
    pub snapshots: Option<String>,
    /// Whether keys and snapshots may go unencrypted to a store in S3 that is not on this machine.
    pub snapshots_allow_http: bool,
    /// What has not succeeded by then at a store in S3 has failed.
    pub snapshots_timeout_us: u64,
    /// Sources: requests come in by so many ways, each in an order of its own. Never another number in the
    /// life of a log.
    pub sources: u32,
    /// Who is silent for so long is lost.
    pub lease_us: u64,
    /// So often a worker says that it lives.
    pub beat_us: u64,
    /// A generation that has not begun by then gives way to the next.
    pub form_us: u64,
    /// So many requests of a source are in one epoch at most. In long epochs more of them are in each other's
    /// way, and run again, but for those whose rows are known beforehand. Where nothing is said: what is mostly right for the
    /// program.
    pub epoch_rows_max: Option<u64>,
    /// So many replies and events of an epoch are one message of Kafka at most: with more than one, it is a list.
    pub together: usize,
    /// A request, a reply or an event may take so many bytes in the log: a call that is larger is refused, and a
    /// transaction of which a larger one would leave aborts. Another one is as another version of the program: what
    /// was recorded with the one before would come to something else. A log in Kafka, where brokers take messages of 1 MB
    /// unless they are told otherwise, has them in two forms at once.
    pub message_bytes_max: usize,
    /// Snapshots are so long apart at least.
    pub snapshot_us: u64,
    /// After so many objects a snapshot is a whole one.
    pub snapshot_objects_max: usize,
}

/// Where the cuts are of a log in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cuts {
    /// In a topic of their own: the coordinator goes on wherever it is started again.
    Log,
    /// In the coordinator's directory, which must not be lost.
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
            snapshot_objects_max: 100,
        }
    }
}

impl ClusterSettings {
    /// The name of the cluster.
    pub(super) fn name(&self, spec: &AppSpec) -> String {
        self.name.clone().unwrap_or_else(|| spec.program.name.to_string())
    }

    /// What a process is started with, checked.
    ///
    /// # Errors
    /// What is wrong, and how to mend it.
    pub(super) fn host(
        &self,
        spec: &AppSpec,
        topics: &[Followed],
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
                format!("the cluster is called '{name}', which can't begin names of objects");
            return wrong(what, "set cluster_name to a name of ASCII letters, digits, - and _");
        }
        if secret.len() < SECRET_BYTES_MIN {
            let what = format!("the cluster's secret has {} bytes", secret.len());
            return wrong(
                what,
                "give at least 16 bytes that nobody can guess: `openssl rand -hex 32`",
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
            return wrong(what, "a lease is three beats long at least: one may be late");
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
                    "at {listen} a process listens on all addresses, and others reach it by one"
                ),
                "say which: cluster_advertised",
            );
        }
        Ok(Host {
            cluster: name,
            secret: Secret::new(secret),
            tls: self.tls(env)?,
            app: self.shared(program),
            listen,
            advertised,
            machine: tidemill_cluster::Settings {
                program,
                sources: self.sources + sources(topics) + feeds::count(spec),
                followed: sources(topics) + feeds::count(spec),
                lease_us: self.lease_us,
                beat_us: self.beat_us,
                form_us: self.form_us,
                epoch_max: self.epoch_rows_max.unwrap_or_else(|| epoch_rows(spec)),
                // What the coordinator serves nobody else reads.
                tells_left: !spec.sinks.is_empty(),
                outputs_max: if self.log.is_some() { self.together } else { TOGETHER },
                snapshot_every: 1,
                snapshot_us: self.snapshot_us,
                objects_max: self.snapshot_objects_max,
                event_time: event_time.into(),
                goes_on: [].into(),
                parked_bytes_max: spec.settings.parked_bytes_max as u64,
                clock_jump_us_max: spec.settings.clock_jump_us_max,
                function: tidemill_function::Settings {
                    seed: spec.program.seed,
                    output_bytes_max: self.message_bytes_max,
                    ..tidemill_function::Settings::default()
                },
            },
            tick_us: (self.beat_us / TICKS).max(1_000),
        })
    }
}

impl ClusterSettings {
    /// What all processes of a cluster have to have the same: the program, and where they read and store what
    /// they share. One that stored its part of a snapshot elsewhere would be missed by the next recovery.
    fn shared(&self, fingerprint: u128) -> u128 {
        let mut bytes = Vec::new();
        put_u128(fingerprint, &mut bytes);
        put_u32(self.sources, &mut bytes);
        bytes.push(self.log.is_some().into());
        // Brokers and directories may have other names on other machines.
        let bucket = self.snapshots.as_deref().filter(|at| at.contains("://"));
        put_bytes(bucket.unwrap_or_default().as_bytes(), &mut bytes);
        hash128(&bytes)
    }

    /// The certificates, where there are some.
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
                    "TLS between processes needs all three: each shows its certificate, and has to know who \
                     signs those of the others",
                ))
            }
        }
    }
}

/// An address that a setting gives.
pub(super) fn address(setting: &str, text: &str) -> Result<Addr> {
    text.parse().map_err(|_| {
        Error::setting(format!("{setting} is '{text}', which is no address"))
            .help("give one with a port, as 127.0.0.1:7400, or with port 0 for a free one")
    })
}

/// The number of a process, as people read it.
pub(super) fn shown(peer: Peer) -> String {
    format!("{:08x}", peer.0)
}

/// So many requests of a source are in an epoch where nothing else is said.
fn epoch_rows(spec: &AppSpec) -> u64 {
    if knows_rows(spec) {
        return EPOCH_ROWS_KNOWN;
    }
    let slides = spec.program.windows.iter().filter_map(|window| match window.extent {
        Extent::Time { size_us, slide_us } => Some((size_us - 1) / slide_us + 1),
        Extent::Rows { .. } => None,
    });
    let rows = |slides: i64| u64::try_from(EPOCH_SLIDES / slides).unwrap_or(0).max(1);
    slides.map(rows).fold(EPOCH_ROWS, u64::min)
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

    const PAGE: &str = include_str!("../../../docs/processes.md");
    const SECRET: [u8; 16] = [7; 16];

    /// The table of settings of the page: what it says of the default of each.
    fn told() -> BTreeMap<String, String> {
        let (_, section) = PAGE.split_once("\n## Settings\n").unwrap();
        let rows = section.lines().skip_while(|line| !line.starts_with("| `"));
        let mut told = BTreeMap::new();
        for row in rows.take_while(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').skip(1).map(str::trim).collect();
            let names = cells[0].split(", ").map(|name| name.trim_matches('`').to_owned());
            let names: Vec<String> = names.collect();
            // Numbers have commas, too, without a space behind them.
            let all: Vec<&str> = cells[1].split(", ").collect();
            let of = |nth: usize| if all.len() == names.len() { all[nth] } else { cells[1] };
            told.extend(
                names.iter().enumerate().map(|(nth, name)| (name.clone(), of(nth).to_owned())),
            );
        }
        told
    }

    /// What the page says where a setting is what it is without being said.
    fn shown(name: &str, default: &Value) -> String {
        match (name, default) {
            ("listen", Value::String(at)) => at.trim_end_matches(":0").into(),
            // It follows from where it listens, which is in the same row.
            ("advertised", Value::Null) => "127.0.0.1".into(),
            ("name", Value::Null) => "the app's".into(),
            ("log", Value::Null) => "served".into(),
            ("log_options", Value::Object(none)) if none.is_empty() => "–".into(),
            ("snapshots", Value::Null) => "in the data directory".into(),
            (_, Value::Null) => String::new(),
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
        let mut told = told();
        assert_eq!(told.remove("cluster_epoch_rows_max").unwrap().split(' ').next(), Some("250;"));
        assert_eq!(told.remove("parked_bytes_max").as_deref(), Some("256 MiB"));
        assert_eq!(Settings::default().parked_bytes_max, 256 << 20);
        // What processes know is in a file; no setting is without it.
        assert_eq!(told.remove("cluster_secret_file").as_deref(), Some(""));
        let Value::Object(mut own) = json!(ClusterSettings::default()) else { panic!("no object") };
        assert_eq!(own.remove("epoch_rows_max"), Some(Value::Null));
        // These have no prefix.
        assert!(own.remove("dir").is_some() && own.remove("fresh") == Some(json!(false)));
        let own: BTreeMap<String, String> = own
            .iter()
            .map(|(name, value)| (format!("cluster_{name}"), shown(name, value)))
            .collect();
        assert_eq!(told, own);
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
        assert_eq!(found, [250, 250, 243, 243, 2, 1]);
    }

    #[test]
    fn an_epoch_is_longer_where_all_is_declared_and_rows_follow_from_the_event() {
        let told = told().remove("cluster_epoch_rows_max").unwrap();
        let words =
            "250; 2,500 where all transactions are declared and their rows follow from the event; as many as slide \
             a window by time 10,000 times, where these are fewer";
        assert_eq!(told, words);
        let settings = ClusterSettings::default();
        let found = [true, false].map(|has_function| machine(&settings, has_function).epoch_max);
        assert_eq!(found, [250, 2_500]);
        let settings = ClusterSettings { epoch_rows_max: Some(7), ..settings };
        let found = [true, false].map(|has_function| machine(&settings, has_function).epoch_max);
        assert_eq!(found, [7, 7]);
    }

    /// What these do is checked where it is done: of generations, cuts and snapshots in `cluster/tests/limits.rs`.
    #[test]
    fn settings_are_those_of_the_machines() {
        let settings = ClusterSettings {
            sources: 3,
            lease_us: 4_000_000,
            beat_us: 5_000,
            form_us: 6_000,
            message_bytes_max: 7_000,
            snapshot_us: 8_000,
            snapshot_objects_max: 9,
            together: 10,
            log: Some("kafka://localhost:9092".into()),
            ..ClusterSettings::default()
        };
        let found = machine(&settings, true);
        assert_eq!((found.sources, found.lease_us, found.beat_us), (3, 4_000_000, 5_000));
        assert_eq!((found.form_us, found.function.output_bytes_max), (6_000, 7_000));
        assert_eq!((found.snapshot_every, found.snapshot_us, found.objects_max), (1, 8_000, 9));
        assert_eq!(found.outputs_max, 10);
        // Nobody reads what the coordinator serves but the cluster.
        let served = ClusterSettings { log: None, ..settings };
        assert_eq!(machine(&served, true).outputs_max, TOGETHER);
    }
}
