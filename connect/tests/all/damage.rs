//! Any bytes are read to the end: every row decoded or bad, never a panic.

use proptest::prelude::*;
use tidemill_connect::source::contract::{check, Taken};
use tidemill_connect::{FileFormat, FilesSettings};

use crate::{cases, every_type, Folder};

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
    // A damaged header is refused, which is an error and no panic.
    folder.open(&settings, &schema).ok()?;
    let sound = |source: &mut dyn tidemill_connect::Source| source.poll(usize::MAX).is_ok();
    if !sound(&mut *folder.open(&settings, &schema).ok()?.remove(0).1) {
        return None;
    }
    Some(check(|| folder.open(&settings, &schema).expect("a source").remove(0).1))
}

/// The sample with some bytes replaced, inserted or removed.
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
