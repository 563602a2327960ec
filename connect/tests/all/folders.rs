use std::io::Write;

use tidemill_connect::{FilesSettings, Place, Polled};
use tidemill_core::{Column, DataType, Kind, Value};

use crate::{schema, zipped, Folder};

fn columns() -> std::sync::Arc<tidemill_core::Schema> {
    schema(vec![Column::new("a", DataType::Int)])
}

#[test]
fn folders_and_patterns() {
    let folder = Folder::new();
    folder.put("b.csv", "a\n1\n");
    folder.put("a.csv.gz", zipped(b"a\n2\n"));
    folder.put("c.jsonl", "{\"a\":3}\n");
    folder.put(".hidden.csv", "x\n");
    folder.env.disk.create_dir_all(&folder.path("sub.csv")).unwrap();
    let names = |path: &str| -> Vec<String> {
        let settings = FilesSettings::new(folder.path(path));
        folder.open(&settings, &columns()).unwrap().into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(""), ["a.csv.gz", "b.csv", "c.jsonl"]);
    assert_eq!(names("*.csv*"), ["a.csv.gz", "b.csv"]);
    assert_eq!(names("b.csv"), ["b.csv"]);
    let refused = |path: &str| {
        let settings = FilesSettings::new(folder.path(path));
        folder.open(&settings, &columns()).map(|_| ()).unwrap_err()
    };
    let missing = refused("bb.csv");
    assert_eq!(missing.kind, Kind::Input);
    assert!(missing.what.starts_with("there is no file") && missing.what.ends_with("bb.csv"));
    assert!(missing.help.contains("b.csv?"), "{missing}");
    assert!(refused("nowhere/x.csv").help.starts_with("there is no folder"));
    assert!(refused("*.txt").what.starts_with("no file matches"));
    assert!(refused("*/x.csv").help.contains("folder"), "{}", refused("*/x.csv"));
    assert!(refused("sub.csv").what.contains("has no files"));
    folder.put("note.txt", "");
    assert!(refused("note.txt").what.contains("does not end like a known format"));
    let mut settings = FilesSettings::new(folder.path("c.jsonl"));
    settings.header = Some(true);
    let error = folder.open(&settings, &columns()).map(|_| ()).unwrap_err();
    assert!(error.what.contains("header means nothing"), "{error}");
    let mut tab = FilesSettings::new(folder.put("x.TSV", "a\tb\n1\t2\n"));
    let row =
        |settings: &FilesSettings| match folder.open(settings, &columns()).unwrap()[0].1.poll(1) {
            Ok(Polled::Rows(chunk)) => chunk.batch.value(0, 0),
            other => panic!("{other:?}"),
        };
    assert_eq!(row(&tab), Value::Int(1));
    tab.delimiter = Some(',');
    assert!(folder.open(&tab, &columns()).is_err());
}

#[test]
fn what_is_appended_later_is_not_read() {
    let folder = Folder::new();
    let settings = FilesSettings::new(folder.put("x.csv", "a\n1\n"));
    let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
    let mut file = folder.env.disk.open_append(&settings.path).unwrap();
    file.write_all(b"2\n").unwrap();
    assert!(matches!(source.poll(9), Ok(Polled::Rows(chunk)) if chunk.next_offset == 1));
    assert!(matches!(source.poll(9), Ok(Polled::End)));
    let place = source.place();
    let mut longer = folder.open(&settings, &columns()).unwrap().remove(0).1;
    longer.resume(&place).unwrap();
    assert!(matches!(longer.poll(9), Ok(Polled::Rows(chunk)) if chunk.next_offset == 2));
}

#[test]
fn files_that_change_while_they_are_read() {
    let rows: String = (0..200_000).map(|i| format!("{i}\n")).collect();
    let folder = Folder::new();
    let settings = FilesSettings::new(folder.put("x.csv", format!("a\n{rows}")));
    let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
    assert!(matches!(source.poll(10), Ok(Polled::Rows(_))));
    folder.env.disk.open_append(&settings.path).unwrap().set_len(500_000).unwrap();
    let error = loop {
        match source.poll(usize::MAX) {
            Ok(Polled::Rows(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, Kind::Io);
    assert!(error.what.contains("x.csv, row ") && error.what.contains("shrunk"), "{error}");
    assert_eq!(source.poll(1).unwrap_err(), error, "the error stays");
    folder.env.disk.open_append(&settings.path).unwrap().set_len(1000).unwrap();
    let mut again = folder.open(&settings, &columns()).unwrap().remove(0).1;
    let error = again.resume(&source.place()).unwrap_err();
    assert!(error.what.contains("x.csv has 1000 bytes; "), "{error}");
    assert_eq!(again.poll(1).unwrap_err(), error, "the error stays");
    again.resume(&Place::start()).unwrap();
    assert!(matches!(again.poll(5), Ok(Polled::Rows(_))), "the rows before are there");

    let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
    folder.env.disk.remove(&settings.path).unwrap();
    assert_eq!(source.poll(1).unwrap_err().kind, Kind::Io);
}

#[test]
fn damaged_and_many_part_gzip() {
    let folder = Folder::new();
    let mut parts = zipped(b"a\n1\n2");
    parts.extend(zipped(b"3\n4\n"));
    let settings = FilesSettings::new(folder.put("parts.csv.gz", &parts));
    let rows = folder.rows(&settings, &columns());
    let row = |i| vec![Value::Int(i)];
    assert_eq!(crate::good(&rows), [row(1), row(23), row(4)]);

    let whole = zipped(format!("a\n{}", "123456\n654321\n".repeat(1000)).as_bytes());
    for cut in (3..whole.len()).step_by(7) {
        // Cut and flipped files give rows and then an error, or are refused at once.
        let mut flipped = whole.clone();
        flipped[cut] ^= 0x10;
        for (bytes, must_fail) in [(&whole[..cut], true), (&flipped[..], false)] {
            let settings = FilesSettings::new(folder.put("x.csv.gz", bytes));
            let Ok(mut sources) = folder.open(&settings, &columns()) else { continue };
            loop {
                match sources[0].1.poll(1000) {
                    Ok(Polled::Rows(_)) => {}
                    Ok(_) => {
                        assert!(!must_fail, "cut at {cut}");
                        break;
                    }
                    Err(error) => {
                        assert_eq!(error.kind, Kind::Io);
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_read_before_is_compared() {
    let folder = Folder::new();
    let source = |content: &[u8], place: Option<&Place>| {
        let settings = FilesSettings::new(folder.put("x.csv", content));
        let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
        source.resume(place.unwrap_or(&Place::start())).map(|()| source)
    };
    let at = |source: &mut dyn tidemill_connect::Source, rows| {
        assert!(matches!(source.poll(rows), Ok(Polled::Rows(_))));
        source.place()
    };
    let text = b"a\n1\n\n2\n3";
    for content in [text.to_vec(), zipped(text), [b"\xef\xbb\xbf", &text[..]].concat()] {
        let place = at(&mut *source(&content, None).unwrap(), 2);
        assert_eq!((place.offset, place.bytes, place.line), (2, 7, 5));
        let mut resumed = source(&content, Some(&place)).unwrap();
        assert_eq!(at(&mut *resumed, 9).offset, 3);
        let end = resumed.place();
        assert!(matches!(source(&content, Some(&end)).unwrap().poll(9), Ok(Polled::End)));
    }
    let mut whole = source(text, None).unwrap();
    let (two, three) = (at(&mut *whole, 2), at(&mut *whole, 9));
    for (content, place, why) in [
        (&b"a\n1\n\n2"[..], &two, "x.csv has 6 bytes; 7 were read"),
        (b"a\n1\n\n4\n3", &two, "x.csv has changed: its first 2 rows"),
        (b"a\n1\n\n2\n34\n", &three, "x.csv: row 2 had no newline at its end"),
        (b"", &two, "x.csv has 0 bytes"),
    ] {
        let error = source(content, Some(place)).map(|_| ()).unwrap_err();
        assert_eq!(error.kind, Kind::Input);
        assert!(error.what.contains(why), "{error}");
        assert!(error.help.contains("--fresh"));
    }
    source(b"a\n1\n\n2\n34\n", Some(&two)).unwrap();
}

/// A last row without a newline may get one, and more rows after it.
#[test]
fn a_missing_last_newline_may_be_added() {
    let folder = Folder::new();
    for (name, text) in [("x.csv", "a\n1\n2"), ("x.jsonl", "{\"a\": 1}\n{\"a\": 2}")] {
        let source = |content: &str, place: &Place| {
            let settings = FilesSettings::new(folder.put(name, content.as_bytes()));
            let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
            source.resume(place).map(|()| source)
        };
        let mut whole = source(text, &Place::start()).unwrap();
        assert!(matches!(whole.poll(9), Ok(Polled::Rows(_))));
        let end = whole.place();
        let row = if name == "x.csv" { "3" } else { "{\"a\": 3}" };
        for newline in ["\n", "\r\n"] {
            let mut same = source(&format!("{text}{newline}"), &end).unwrap();
            assert!(matches!(same.poll(9), Ok(Polled::End)), "{name}");
            assert_eq!(same.place(), end);
            let mut more = source(&format!("{text}{newline}{row}"), &end).unwrap();
            let Ok(Polled::Rows(chunk)) = more.poll(9) else { panic!("{name} has one more row") };
            assert_eq!((chunk.offsets, chunk.bad.len()), (vec![2], 0), "{name}");
            assert_eq!(more.place().line, if name == "x.csv" { 4 } else { 3 }, "{name}");
        }
        let error = source(&format!("{text}\r{row}"), &end).map(|_| ()).unwrap_err();
        assert!(error.what.contains("had no newline"), "{error}");
    }
}
