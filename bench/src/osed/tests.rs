use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::run::Detection;
use super::tweets::{Played, FOLDER};
use crate::check;
use crate::run::Case;
use crate::run_json;
use crate::same::same_as_reference;

/// Runs the workload; returns the report and the messages about progress.
fn run(options: &str) -> Result<(Value, String), String> {
    let (json, mut said) = (format!(r#"{{"workload":"osed",{options}}}"#), String::new());
    let text = run_json(&json, None, Vec::new(), &mut |line| said = format!("{said}{line}\n"));
    let report = serde_json::from_str(&text.map_err(|e| e.to_string())?).unwrap();
    Ok((report, said))
}

/// Returns a file with the tweets of one `Crisis`.
fn one_crisis() -> String {
    format!("{FOLDER}/2013_Boston_Bombings.csv.gz")
}

fn case(options: &str) -> Detection {
    let options = format!(r#"{options},"tweets":"{}""#, one_crisis());
    check::case(&check::args("osed", &options), Vec::new())
}

#[test]
fn all_strategies_threads_and_epochs_come_to_the_same() {
    for form in [r#""events":1700"#, r#""window":30,"events":500"#] {
        let mut hashes = Vec::new();
        for strategy in ["serial", "adaptive", "lists", "s-store", "tstream", "ns-op-eager"] {
            for (threads, epoch) in [(1, 10_240), (2, 700), (3, 64)] {
                let options = format!(
                    r#"{form},"strategy":"{strategy}","threads":{threads},"epoch":{epoch},"repeat":1,
                        "tweets":"{}""#,
                    one_crisis()
                );
                let (report, _) = run(&options).unwrap();
                assert_eq!(report["valid"], true, "{report}");
                hashes.push((report["state_hash"].clone(), report["output_hash"].clone()));
            }
        }
        hashes.dedup();
        assert_eq!(hashes.len(), 1, "{form}: {hashes:?}");
    }
}

#[test]
fn the_reference_comes_to_the_same() {
    let case = case(r#""events":130,"window":20"#);
    assert_eq!(same_as_reference(&case, 64, None), 0);
}

/// Compares the baseline, and so the engine, with a search through all tweets and clusters for each
/// tweet.
#[test]
fn clusters_are_those_of_all_similarities() {
    let case = case(r#""events":700,"window":50"#);
    let mut tight = case.baseline();
    case.run_baseline(&mut tight);
    let (window, played) = (case.window, &case.made.events);
    let merges = merges(played, window);
    assert_eq!(tight.merges.len(), merges.len());
    for (found, want) in tight.merges.iter().zip(&merges) {
        assert_eq!(found, want);
    }
    assert!(merges.len() > 500 && tight.clusters.len() > 50 && tight.clusters.len() < 500);
    for event in &tight.events {
        let of = |window: i64| {
            let is_of = |(tweet, cluster, _): &&(i64, i64, f64)| {
                *cluster == event.cluster && tweet / case.window == window
            };
            merges.iter().filter(is_of).count() as f64
        };
        let (now, before) = (of(event.window), of(event.window - 1));
        assert!(now - before > 0.001 * window as f64 && now >= 0.05 * window as f64);
        assert_eq!(event.growth, (now - before) / window as f64);
    }
    assert!(!tight.events.is_empty());
}

/// Returns the cluster of each tweet, computed by the definition.
fn merges(played: &Played, window: i64) -> Vec<(i64, i64, f64)> {
    let words = |tweet: i64| &played.at(tweet as usize).words;
    let with = |tweets: std::ops::Range<i64>, word: i64| {
        tweets.filter(|tweet| words(*tweet).contains(&word)).count() as f64
    };
    // The TF-IDF of a word in a window, as of its last tweet there.
    let score = |now: i64, word: i64| {
        let tweets = now * window..(now + 1) * window;
        let last = tweets.clone().rev().find(|tweet| words(*tweet).contains(&word));
        last.map_or(0.0, |last| {
            let idf = ((last + 1) as f64 / with(0..last + 1, word)).ln();
            with(tweets, word) / window as f64 * idf
        })
    };
    let mut merges: Vec<(i64, i64, f64)> = Vec::new();
    for tweet in 0..played.count as i64 / window * window {
        let now = tweet / window;
        let bursts = |word: &i64| {
            let before = if now > 0 { score(now - 1, *word) } else { 0.0 };
            score(now, *word) - before >= 0.001
        };
        if !words(tweet).iter().any(bursts) {
            continue;
        }
        let mut recent: Vec<i64> = (merges.iter())
            .filter(|(other, ..)| other / window >= now - 1)
            .map(|(_, cluster, _)| *cluster)
            .collect();
        recent.sort_unstable();
        recent.dedup();
        let similarity = |cluster: i64| {
            let of = merges.iter().filter(|(_, other, _)| *other == cluster);
            let mut counts = std::collections::BTreeMap::<i64, i64>::new();
            of.flat_map(|(other, ..)| words(*other))
                .for_each(|w| *counts.entry(*w).or_default() += 1);
            let dot: i64 = words(tweet).iter().filter_map(|word| counts.get(word)).sum();
            let norm2: i64 = counts.values().map(|count| count * count).sum();
            dot as f64 / (words(tweet).len() as f64 * norm2 as f64).sqrt()
        };
        let mut best = (tweet, 1.0);
        for cluster in recent {
            let found = similarity(cluster);
            if found >= 0.05 && (best.0 == tweet || found > best.1) {
                best = (cluster, found);
            }
        }
        merges.push((tweet, best.0, best.1));
    }
    merges
}

#[test]
fn every_crisis_is_found() {
    let (report, said) = run(r#""strategy":"serial","repeat":1"#).unwrap();
    assert_eq!(report["valid"], true, "{report}");
    assert_eq!((&report["events"], &report["tweets_dead"]), (&60_082.into(), &0.into()));
    let crises = report["crises"].as_array().unwrap();
    assert_eq!(crises.len(), 6);
    for crisis in crises {
        let largest = &crisis["largest"];
        let (tweets, on_topic) = (largest["tweets"].as_u64(), largest["on_topic"].as_u64());
        assert!(2 * on_topic.unwrap() > tweets.unwrap(), "{crisis}");
        assert!(largest["first_reported"].is_i64() && crisis["distance"].is_object(), "{crisis}");
        assert!(crisis["false_alarms"].as_u64().unwrap() <= 3, "{crisis}");
        let name = crisis["crisis"].as_str().unwrap();
        assert!(said.contains(&format!("\n{name} ")), "{said}");
    }
}

/// Labels are used only for comparison: with all of them inverted, the same is detected.
#[test]
fn labels_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = ["flood in the city", "what a lovely day", "the flood is rising"].repeat(20);
    texts.push("sunshine");
    let hashes = ["on-topic", "off-topic"].map(|label| {
        let rows =
            texts.iter().enumerate().map(|(at, text)| format!("'{at}',\"{text}\",{label}\n"));
        let path =
            write(&folder, "labelled.csv", &format!("id,text,label\n{}", rows.collect::<String>()));
        let (report, _) = run(&format!(r#""tweets":"{path}","window":10,"repeat":1"#)).unwrap();
        assert_eq!(report["valid"], true, "{report}");
        (report["state_hash"].clone(), report["output_hash"].clone())
    });
    assert_eq!(hashes[0], hashes[1]);
}

fn write(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    #[allow(clippy::disallowed_methods)] // A file that a test makes.
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn rows_that_are_no_tweets_are_set_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        &folder,
        "odd.csv",
        "tweet id, tweet, label\n\
         '11',\"a \"\"quoted\"\" flood\nover two lines\",on-topic\n\
         'eleven',\"not a number\",on-topic\n\
         '-5',\"negative\",on-topic\n\
         '12',\"no label\"\n\
         '13',\"closed\" too early,on-topic\n\
         '14',\"labelled otherwise\",maybe\n\
         '10',plain flood,off-topic\n\
         99999999999999999999,too large,off-topic\n",
    );
    let (report, said) = run(&format!(r#""tweets":"{path}","window":1,"repeat":1"#)).unwrap();
    assert_eq!(report["valid"], true, "{report}");
    assert_eq!((&report["events"], &report["tweets_dead"]), (&2.into(), &6.into()), "{said}");
    for want in ["\"eleven\" is not the id of a tweet", "row 3", "odd.csv", "neither on-topic"] {
        assert!(said.contains(want), "{want}: {said}");
    }
}

#[test]
fn what_can_not_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let empty = write(&folder, "empty.csv", "");
    let header = write(&folder, "header.csv", "tweet id, tweet, label\n");
    let folder_of_none = folder.path().join("none");
    #[allow(clippy::disallowed_methods)] // A folder that a test makes.
    std::fs::create_dir(&folder_of_none).unwrap();
    let missing = Path::new(&empty).with_file_name("missing.csv");
    for (options, want) in [
        (format!(r#""tweets":"{}""#, missing.display()), "missing.csv"),
        (format!(r#""tweets":"{}""#, folder_of_none.display()), "no file matches"),
        (format!(r#""tweets":"{empty}""#), "has no tweets"),
        (format!(r#""tweets":"{header}""#), "has no tweets"),
        (r#""window":0"#.into(), "--window 0"),
        (r#""window":1000001"#.into(), "1 to 1000000"),
        (r#""program":"traced""#.into(), "osed is written in Rust only"),
        (r#""udf_ns":5"#.into(), "--udf-ns"),
        (r#""length":2"#.into(), "--length: osed has no such option"),
    ] {
        let text = run(&options).expect_err(&options);
        assert!(text.contains(want), "{options}: {text}");
    }
    let elsewhere = run_json(r#"{"workload":"sea","tweets":"x"}"#, None, Vec::new(), &mut |_| {});
    assert!(elsewhere.unwrap_err().to_string().contains("--tweets: sea has no such option"));
}
