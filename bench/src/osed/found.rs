//! The detected events, compared with the labels. For each `Crisis`, it has the clusters reported
//! as events, and the correlation of their popularity with that of the topic. This is the only
//! place that reads labels.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{json, Map, Value};

use super::tight::Tight;
use super::tweets::{Crisis, Tweets};

/// The number of words that describe a cluster.
const WORDS: usize = 4;

/// A cluster, restricted to the tweets of one `Crisis`.
#[derive(Clone, Debug, Default)]
struct Cluster {
    /// The number of its tweets by window.
    windows: BTreeMap<i64, usize>,
    tweets: usize,
    on_topic: usize,
    words: HashMap<i64, usize>,
}

impl Cluster {
    /// Whether most of its tweets are on topic.
    fn is_on_topic(&self) -> bool {
        2 * self.on_topic > self.tweets
    }

    /// Returns the words that most of its tweets have.
    fn described(&self, all: &Tweets) -> String {
        let mut words: Vec<(usize, &str)> =
            self.words.iter().map(|(word, count)| (*count, &*all.words[word])).collect();
        words.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let words: Vec<&str> = words.iter().take(WORDS).map(|(_, word)| *word).collect();
        words.join(" ")
    }
}

/// Returns the detected events of each `Crisis`, the first time that its tweets occur.
pub(super) fn details(all: &Tweets, tight: &Tight, window: i64) -> Map<String, Value> {
    let crises: Vec<Value> =
        all.crises.iter().map(|crisis| of_crisis(all, crisis, tight, window)).collect();
    let mut details = Map::new();
    details.insert("tweets_dead".into(), json!(all.dead.len()));
    details.insert("crises".into(), crises.into());
    details
}

/// Returns the detected events of one `Crisis`.
fn of_crisis(all: &Tweets, crisis: &Crisis, tight: &Tight, window: i64) -> Value {
    // The windows without other tweets.
    let size = window as usize;
    let first = crisis.tweets.start.div_ceil(size);
    let windows = first as i64..(crisis.tweets.end / size).max(first) as i64;
    let merged_to = tight.merges.last().map_or(0, |(tweet, ..)| *tweet as usize + 1);
    let windows = windows.start..windows.end.min(merged_to.div_ceil(size) as i64);

    let mut clusters: BTreeMap<i64, Cluster> = BTreeMap::new();
    for (tweet, cluster, _) in &tight.merges {
        if !crisis.tweets.contains(&(*tweet as usize)) {
            continue;
        }
        let (found, tweet_of) =
            (clusters.entry(*cluster).or_default(), &all.tweets[*tweet as usize]);
        *found.windows.entry(tweet / window).or_default() += 1;
        found.tweets += 1;
        found.on_topic += usize::from(tweet_of.on_topic);
        tweet_of.words.iter().for_each(|word| *found.words.entry(*word).or_default() += 1);
    }
    let reported: BTreeSet<i64> = (tight.events.iter())
        .filter(|event| windows.contains(&event.window))
        .map(|event| event.cluster)
        .collect();
    let reported = reported.iter().filter_map(|id| Some((*id, clusters.get(id)?)));
    let (events, false_alarms): (Vec<_>, Vec<_>) =
        reported.partition(|(_, cluster)| cluster.is_on_topic());
    let largest = events.iter().max_by_key(|(_, cluster)| cluster.on_topic);

    let tweets = |window: i64| {
        let begun = window as usize * size;
        &all.tweets[begun..begun + size]
    };
    let labelled: Vec<usize> = (windows.clone())
        .map(|window| tweets(window).iter().filter(|tweet| tweet.on_topic).count())
        .collect();
    let of = |cluster: &Cluster, window: i64| cluster.windows.get(&window).copied().unwrap_or(0);
    let all_events: Vec<usize> = (windows.clone())
        .map(|window| events.iter().map(|(_, cluster)| of(cluster, window)).sum())
        .collect();
    // The distance between the beginnings of the windows in which the two are largest.
    let distance = |detected: &[usize]| -> Value {
        let (Some(label), Some(found)) = (largest_at(&labelled), largest_at(detected)) else {
            return Value::Null;
        };
        let time_ms = |at: usize| tweets(windows.start + at as i64)[0].time_ms();
        let seconds = (time_ms(found) - time_ms(label)).abs() / 1000;
        json!({ "windows": found.abs_diff(label), "seconds": seconds })
    };
    let largest = largest.map(|(id, cluster)| {
        let detected: Vec<usize> = windows.clone().map(|window| of(cluster, window)).collect();
        let is_it = |event: &&super::tight::Found| event.cluster == *id;
        json!({
            "cluster": id,
            "words": cluster.described(all),
            "tweets": cluster.tweets,
            "on_topic": cluster.on_topic,
            "first_reported": tight.events.iter().find(is_it).map(|e| e.window - windows.start),
            "distance": distance(&detected),
            "popularity": detected,
        })
    });
    json!({
        "crisis": crisis.name,
        "tweets": crisis.tweets.len(),
        "windows": windows.end.max(windows.start) - windows.start,
        "events": events.len(),
        "false_alarms": false_alarms.len(),
        "distance": distance(&all_events),
        "labelled": labelled,
        "detected": all_events,
        "largest": largest,
    })
}

/// Returns the place of the first maximum.
fn largest_at(counts: &[usize]) -> Option<usize> {
    (0..counts.len()).rev().max_by_key(|at| counts[*at]).filter(|at| counts[*at] > 0)
}

/// Returns the details as readable lines.
pub(super) fn table(details: &Map<String, Value>) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<26} {:>7} {:>6} {:>5}  {:>15}  {:>15}  largest event",
        "crisis", "windows", "events", "false", "distance, all", "of the largest"
    )];
    let number = |value: &Value| value.as_u64().map_or("-".into(), |number| number.to_string());
    let distance = |value: &Value| match value["windows"].as_u64() {
        Some(windows) => format!("{windows} ({} s)", value["seconds"]),
        None => "-".into(),
    };
    let crises = details.get("crises").and_then(Value::as_array);
    for crisis in crises.into_iter().flatten() {
        let largest = &crisis["largest"];
        let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
        lines.push(format!(
            "{:<26} {:>7} {:>6} {:>5}  {:>15}  {:>15}  {} of {} on topic: {}",
            text(&crisis["crisis"]),
            number(&crisis["windows"]),
            number(&crisis["events"]),
            number(&crisis["false_alarms"]),
            distance(&crisis["distance"]),
            distance(&largest["distance"]),
            number(&largest["on_topic"]),
            number(&largest["tweets"]),
            text(&largest["words"]),
        ));
    }
    lines
}
