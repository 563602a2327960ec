//! The words of a text.

use std::collections::HashSet;
use std::sync::LazyLock;

use foldhash::fast::FixedState;
use tidemill_core::encode;

use super::WORDS;

/// Words that do not indicate the topic of a text.
const STOP: &str = "
about after again all also amp and another any are aren around back because been before being both but
came can cannot cant come could day did didn didnt does doesnt doing don done dont down each even ever
every few for from get gets getting going gonna good got had has hasnt have havent having her here hers
him his how into isnt its ive just keep know last least let like lol look made make man many may maybe
might more most much must need never new next not now off only other our out over own people really right
said same saw say see she should since some still such sure take tell than that thats the their them then
there these they theyre thing things think this those though time today tomorrow tonight too under until
upon very via wanna want was wasnt way well were what when where which while who why will with without
wont would wouldnt yeah yes yet you your youre
";

/// The set of the words of [`STOP`].
static STOPS: LazyLock<HashSet<&str, FixedState>> =
    LazyLock::new(|| STOP.split_whitespace().collect());

/// Returns the distinct words of a text in the order of their first appearance, at most [`WORDS`].
/// Words are letters and digits in lower case, at least three of them and not digits only. Links,
/// user names and words of [`STOP`] are left out.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for token in text.split_whitespace() {
        let token = token.find("http").map_or(token, |link| &token[..link]);
        for (nth, part) in token.split('@').enumerate() {
            // A user name follows an @.
            let is_name = |c: char| nth > 0 && (c.is_ascii_alphanumeric() || c == '_');
            let part = part.trim_start_matches(is_name);
            for word in part.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’') {
                let letters = word.chars().filter(|c| c.is_alphanumeric());
                let word: String = letters.flat_map(char::to_lowercase).collect();
                let says = word.chars().count() >= 3 && !word.chars().all(char::is_numeric);
                if says && !words.contains(&word) && !STOPS.contains(&*word) {
                    words.push(word);
                    if words.len() == WORDS {
                        return words;
                    }
                }
            }
        }
    }
    words
}

/// Returns the number of a word: its hash, so that no dictionary is necessary.
pub(super) fn number(word: &str) -> i64 {
    encode::hash128(word.as_bytes()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_into_words() {
        for (text, want) in [
            ("Sandy be soooo mad that she be #HurricaneSandy", "sandy soooo mad hurricanesandy"),
            ("RT @user_1: Don't PANIC &amp; run!http://t.co/x1", "panic run"),
            ("@a@b:c d'être 2013 7am's 12", "dêtre 7ams"),
            ("flood Flood FLOOD flood's", "flood floods"),
            ("", ""),
            ("\u{1F30A} 洪水警報 \u{0}", "洪水警報"),
        ] {
            assert_eq!(split(text), want.split_whitespace().collect::<Vec<_>>(), "{text}");
        }
        let many: String = (0..100).map(|n| format!("word{n} ")).collect();
        assert_eq!(split(&many).len(), WORDS);
    }
}
