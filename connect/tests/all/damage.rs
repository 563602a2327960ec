//! Any bytes are read to the end: every row is decoded or bad, and nothing panics.

use std::path::Path;

use proptest::prelude::*;
use tidemill_connect::source::contract::{check, Taken};
use tidemill_connect::{FileFormat, FilesSettings, Polled, Source, Unclosed};
use tidemill_core::{Column, DataType};
use tidemill_env::Env;

use crate::{cases, every_type, schema, Folder};

const CSV: &str = "i,f,b,s,y,t,d,l,a\n\
    1,1.5,true,\"a\"\"b\nc\",0x00,2024-01-01T00:00:00Z,1.25,\"[\"\"x\"\"]\",\"{\"\"a\"\":1}\"\r\n\
    2,-0.0,0,é,0xff,2024-01-01,-3,[],null\n\
    3,inf,FALSE,,0x,1969-12-31 23:59:59.5+01:00,9e1,\"[null,\"\"\"\"]\",[1.5]\n";
const JSONL: &str = r#"{"i":1,"f":1.5,"b":true,"s":"a\"b","y":"0x00","t":"2024-01-01T00:00:00Z","d":1.25,"l":["x"],"a":{"a":[1,-70000,1e5]}}
{"i":2,"f":"NaN","b":false,"s":"\u00e9","y":"0xff","t":5,"d":"-3","l":[null],"a":null,"z":[{}]}
"#;

fn read(bytes: &[u8], format: FileFormat, set: impl Fn(&mut FilesSettings)) -> Option<Vec<Taken>> {
    let folder = Folder::new();
    let mut settings = FilesSettings::new(folder.put("x", bytes));
    settings.format = Some(format);
    set(&mut settings);
    let schema = every_type(false);
    // A damaged header is refused with an error, not a panic.
    folder.open(&settings, &schema).ok()?;
    read_all(&mut *folder.open(&settings, &schema).ok()?.remove(0).1)?;
    Some(check(|| folder.open(&settings, &schema).expect("a source").remove(0).1))
}

/// Reads to the end, which must exist. Returns the number of rows, or nothing after an error.
fn read_all(source: &mut dyn Source) -> Option<usize> {
    let mut rows = 0;
    for _ in 0..100_000 {
        match source.poll(usize::MAX).ok()? {
            Polled::Rows(chunk) => rows += chunk.rows(),
            Polled::End => return Some(rows),
            Polled::Pending => panic!("a file that is not followed is all there"),
        }
    }
    panic!("it does not end");
}

/// Reads every small file of the corpus with some bytes replaced, inserted, removed or cut off.
#[test]
fn damaged_files_of_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/files");
    let nullable = |name, ty| Column::new(name, ty).nullable();
    let schema = schema(vec![nullable("a", DataType::Int), nullable("b", DataType::Str)]);
    let env = Env::real();
    let random = tidemill_sim::SimRandom::new(3);
    let mut files = 0;
    for name in env.disk.list(&corpus).unwrap() {
        let whole = Folder::new().get(&name);
        let Some(format) = FileFormat::of(&name).filter(|_| !whole.is_empty()) else { continue };
        files += 1;
        // These unpack to hundreds of megabytes.
        let is_large = ["huge_page.parquet", "same_text.parquet"].iter().any(|n| name.ends_with(n));
        for nth in 0..(20 + cases(60)) / if is_large { 8 } else { 1 } {
            let mut bytes = whole.clone();
            for _ in 0..nth % 4 {
                let place = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[place] = random.below(256) as u8,
                    1 => bytes.insert(place, random.below(256) as u8),
                    2 if bytes.len() > 1 => drop(bytes.remove(place)),
                    _ => bytes.truncate(place + 1),
                }
            }
            let folder = Folder::new();
            let mut settings = FilesSettings::new(folder.put("x", &bytes));
            settings.format = Some(format);
            if format == FileFormat::Csv && nth % 2 == 0 {
                settings.unclosed = Some(Unclosed::Skip);
            }
            if let Ok(mut sources) = folder.open(&settings, &schema) {
                read_all(&mut *sources.remove(0).1);
            }
        }
    }
    assert!(files > 30);
}

/// Generates the sample with some bytes replaced, inserted or removed.
fn mutated(sample: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(b"\",\n\r\\{}[]:0-.eE\0\xff\xc3 \t".to_vec());
    let byte = prop_oneof![special, any::<u8>()];
    prop::collection::vec((0..sample.len(), 0..3, byte), 1..6).prop_map(|edits| {
        let mut bytes = sample.as_bytes().to_vec();
        for (place, kind, byte) in edits {
            let place = place.min(bytes.len() - 1);
            match kind {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                _ => drop(bytes.remove(place)),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60) as u32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), max in 1usize..100) {
        for format in [FileFormat::Csv, FileFormat::Jsonl] {
            read(&bytes, format, |s| {
                s.record_bytes_max = max;
                s.header = (format == FileFormat::Csv).then_some(false);
            });
            read(&bytes, format, |s| s.encoding = Some("shift_jis".into()));
        }
    }

    #[test]
    fn damaged_csv(bytes in mutated(CSV), max in 20usize..200) {
        read(&bytes, FileFormat::Csv, |_| {});
        let headless = |s: &mut FilesSettings| {
            s.header = Some(false);
            s.record_bytes_max = max;
            s.unclosed = Some(Unclosed::Skip);
        };
        let rows = read(&bytes, FileFormat::Csv, headless);
        prop_assert!(rows.is_some(), "plain bytes can always be read");
    }

    #[test]
    fn damaged_jsonl(bytes in mutated(JSONL)) {
        let rows = read(&bytes, FileFormat::Jsonl, |_| {});
        prop_assert!(rows.is_some(), "JSON lines have no header to refuse");
    }
}
