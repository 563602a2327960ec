use std::io::Write;

use tidemill_connect::{FilesSettings, Polled};
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
    assert!(refused("nowhere/x.csv").help.contains("nowhere is not there"));
    assert!(refused("*.txt").what.starts_with("no file fits"));
    assert!(refused("*/x.csv").help.contains("folder"), "{}", refused("*/x.csv"));
    assert!(refused("sub.csv").what.contains("has no files"));
    folder.put("note.txt", "");
    assert!(refused("note.txt").what.contains("does not tell the format"));
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
    let before = source.fingerprint().unwrap();
    let mut file = folder.env.disk.open_append(&settings.path).unwrap();
    file.write_all(b"2\n").unwrap();
    assert!(matches!(source.poll(9), Ok(Polled::Rows(chunk)) if chunk.next_offset == 1));
    assert!(matches!(source.poll(9), Ok(Polled::End)));
    assert_eq!(source.fingerprint().unwrap(), before);
    let longer = folder.open(&settings, &columns()).unwrap().remove(0).1;
    assert_ne!(longer.fingerprint().unwrap(), before);
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
    assert!(source.seek(5).is_ok() && source.poll(1).is_ok(), "the rows before are there");
    assert_eq!(source.seek(150_000).unwrap_err().kind, Kind::Io);

    let mut source = folder.open(&settings, &columns()).unwrap().remove(0).1;
    folder.env.disk.remove(&settings.path).unwrap();
    assert_eq!(source.poll(1).unwrap_err().kind, Kind::Io);
    assert_eq!(source.fingerprint().unwrap_err().kind, Kind::Io);
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
        // Cut and flipped files: rows, then an error; or refused at once.
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
