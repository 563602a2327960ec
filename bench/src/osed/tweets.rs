//! The tweets: read, sorted, and repeated as often as the options ask.

use std::collections::HashMap;
use std::sync::Arc;

use tidemill_connect::files;
use tidemill_connect::source::{BadRow, Chunk, Source};
use tidemill_connect::{FileFormat, FilesSettings, Polled};
use tidemill_core::{Column, DataType, Error, Result, Schema, Value};
use tidemill_env::Env;

use super::{words, WORDS};
use crate::events::Events;

/// The folder of the project's copy.
pub(super) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/crisislex");
/// The number of rows in one read.
const ROWS: usize = 4096;
/// The label of tweets on the topic of their `Crisis`.
const ON_TOPIC: &str = "on-topic";
/// The label of all others.
const OFF_TOPIC: &str = "off-topic";
/// The origin of the milliseconds in tweet ids, in milliseconds since 1970.
const EPOCH_MS: i64 = 1_288_834_974_657;

/// A tweet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tweet {
    pub(super) id: i64,
    /// The numbers of its words.
    pub(super) words: Vec<i64>,
    /// Whether it is on the topic of its `Crisis`; for the report only.
    pub(super) on_topic: bool,
}

impl Tweet {
    /// Returns the time at which it was written.
    pub(super) fn time_ms(&self) -> i64 {
        (self.id >> 22) + EPOCH_MS
    }
}

/// The tweets of one `Crisis`: those of a file.
#[derive(Clone, Debug)]
pub(super) struct Crisis {
    pub(super) name: String,
    /// The range of its tweets among all.
    pub(super) tweets: std::ops::Range<usize>,
}

/// The tweets that were read.
#[derive(Clone, Debug, Default)]
pub(super) struct Tweets {
    /// The tweets of one `Crisis` after the other, each in the order of ids.
    pub(super) tweets: Vec<Tweet>,
    pub(super) crises: Vec<Crisis>,
    /// The rows that are not tweets.
    pub(super) dead: Vec<BadRow>,
    /// The words by their numbers.
    pub(super) words: HashMap<i64, String>,
}

impl Tweets {
    /// Reads a file, or a folder of files: CSV with the columns id, text and label, compressed or
    /// not. Rows that can't be read are collected in `dead`.
    pub(super) fn read(env: &Env, path: &str) -> Result<Tweets> {
        let mut settings = FilesSettings::new(path);
        settings.format = Some(FileFormat::Csv);
        settings.header = Some(true);
        settings.order = Some(["id", "text", "label"].map(String::from).to_vec());
        // A folder also has a file about the origin of the tweets.
        if env.disk.metadata(path.as_ref()).is_ok_and(|meta| meta.is_dir) {
            settings.path.push("*.csv*");
        }
        let columns = ["id", "text", "label"].map(|name| Column::new(name, DataType::Str));
        let schema = Arc::new(Schema::new(columns.to_vec()));
        let mut tweets = Tweets::default();
        let mut crises = Vec::new();
        for (name, mut source) in files::open(&settings, &schema, env)? {
            let origin = match settings.path.ends_with("*.csv*") {
                true => format!("{path}/{name}"),
                false => path.into(),
            };
            let mut crisis = tweets.file(&mut *source, &origin)?;
            crisis.sort_by_key(|tweet| tweet.id);
            if !crisis.is_empty() {
                let name = name.split('.').next().unwrap_or_default().replace('_', " ");
                crises.push((name, crisis));
            }
        }
        // Sort the crises by time.
        crises.sort_by_key(|(_, tweets)| tweets[0].id);
        for (name, mut crisis) in crises {
            let first = tweets.tweets.len();
            tweets.tweets.append(&mut crisis);
            tweets.crises.push(Crisis { name, tweets: first..tweets.tweets.len() });
        }
        match tweets.tweets.is_empty() {
            false => Ok(tweets),
            true => Err(Error::input(format!("{path} has no tweets"))
                .help("it is CSV: tweet id, text, and on-topic or off-topic")),
        }
    }

    /// Reads the tweets of a file.
    fn file(&mut self, source: &mut dyn Source, origin: &str) -> Result<Vec<Tweet>> {
        let mut found = Vec::new();
        loop {
            let Polled::Rows(Chunk { batch, offsets, bad, .. }) = source.poll(ROWS)? else {
                return Ok(found);
            };
            self.dead.extend(bad);
            for (row, offset) in offsets.into_iter().enumerate() {
                let values = batch.row(row);
                match self.tweet(&values) {
                    Ok(tweet) => found.push(tweet),
                    Err(reason) => {
                        let raw = values.iter().map(Value::to_string).collect::<Vec<_>>();
                        let (origin, raw) = (origin.into(), raw.join(","));
                        self.dead.push(BadRow { offset, origin, line: 0, raw, reason });
                    }
                }
            }
        }
    }

    /// Parses a row as a tweet; the error says why it is none. Ids are in single quotes, for
    /// programs that would read them as floats.
    fn tweet(&mut self, row: &[Value]) -> Result<Tweet, String> {
        let [Value::Str(id), Value::Str(text), Value::Str(label)] = row else {
            return Err("a tweet is an id, a text and a label".into());
        };
        let digits = id.trim().trim_matches('\'');
        let id = match digits.parse::<i64>() {
            Ok(id) if id >= 0 => id,
            _ => return Err(format!("column 'id': {digits:?} is not the id of a tweet")),
        };
        let on_topic = match label.trim() {
            ON_TOPIC => true,
            OFF_TOPIC => false,
            _ => {
                return Err(format!(
                    "column 'label': {label:?} is neither {ON_TOPIC} nor {OFF_TOPIC}"
                ))
            }
        };
        let mut numbers = Vec::new();
        for word in words::split(text) {
            let number = words::number(&word);
            self.words.entry(number).or_insert(word);
            numbers.push(number);
        }
        Ok(Tweet { id, words: numbers, on_topic })
    }
}

/// The tweets as the events of a run, starting again from the first after the last.
pub(crate) struct Played {
    pub(super) read: Tweets,
    pub(super) count: usize,
}

impl Played {
    pub(super) fn at(&self, at: usize) -> &Tweet {
        &self.read.tweets[at % self.read.tweets.len()]
    }
}

impl Events for Played {
    fn count(&self) -> usize {
        self.count
    }

    fn stream(&self, _: usize) -> usize {
        0
    }

    /// A tweet with few words repeats its first one in the missing places. They are never read, and
    /// they touch no additional row.
    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let tweet = self.at(at);
        let first = tweet.words.first().copied().unwrap_or_default();
        let padding = std::iter::repeat_n(first, WORDS - tweet.words.len());
        let words = tweet.words.iter().copied().chain(padding);
        [at as i64, at as i64, tweet.id, tweet.words.len() as i64].into_iter().chain(words)
    }
}
