//! Tests with files that grow, and folders to which files are added.

use std::sync::Arc;

use tidemill_connect::source::contract::{check, Taken};
use tidemill_connect::{FilesSettings, Place, Polled, Source, Waker};
use tidemill_core::{Column, DataType, Error, Result, Schema};

use crate::{bad, good, schema, zipped, Folder};

fn columns() -> Arc<Schema> {
    schema(vec![Column::new("a", DataType::Int)])
}

/// A source whose present content counts as all of it.
struct Present(Box<dyn Source>);

impl Source for Present {
    fn schema(&self) -> &Arc<Schema> {
        self.0.schema()
    }
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        match self.0.poll(rows_max)? {
            Polled::End => panic!("what is followed never ends"),
            Polled::Pending if rows_max > 0 => Ok(Polled::End),
            other => Ok(other),
        }
    }
    fn offset(&self) -> u64 {
        self.0.offset()
    }
    fn place(&self) -> Place {
        self.0.place()
    }
    fn resume(&mut self, place: &Place) -> Result<()> {
        self.0.resume(place)
    }
    fn replayable(&self) -> bool {
        self.0.replayable()
    }
    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }
}

struct Followed {
    folder: Folder,
    settings: FilesSettings,
}

impl Followed {
    fn new(path: &str) -> Followed {
        let folder = Folder::new();
        let settings = FilesSettings { follow: true, ..FilesSettings::new(folder.path(path)) };
        Followed { folder, settings }
    }

    fn open(&self) -> Box<dyn Source> {
        self.folder.open(&self.settings, &columns()).unwrap().remove(0).1
    }

    fn append(&self, name: &str, text: &str) {
        let path = self.folder.path(name);
        self.folder.env.disk.open_append(&path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the rows that arrive until nothing new arrives for a while.
    fn more(&self, source: &mut dyn Source) -> Result<Vec<i64>> {
        let mut rows = Vec::new();
        let mut idle = 0;
        while idle < 3 {
            match source.poll(2)? {
                Polled::Rows(chunk) => {
                    assert_eq!(chunk.next_offset, source.offset());
                    rows.extend_from_slice(chunk.batch.ints(0).unwrap());
                    idle = 0;
                }
                Polled::Pending => {
                    idle += 1;
                    self.folder.env.clock.sleep_us(6_000);
                }
                Polled::End => panic!("what is followed never ends"),
            }
        }
        Ok(rows)
    }

    fn checked(&self) -> Vec<Taken> {
        check(|| Box::new(Present(self.open())))
    }
}

#[test]
fn a_file_grows() {
    let followed = Followed::new("x.csv");
    followed.append("x.csv", "");
    let mut source = followed.open();
    for (text, rows) in [
        ("", &[][..]),
        ("\u{feff}", &[]),
        ("a", &[]),
        ("\n", &[]),
        ("1", &[]),
        ("2", &[]),
        ("\n3\n4\n\n", &[12, 3, 4]),
        ("\n\"5", &[]),
        ("\"\n6\n7", &[5, 6]),
        ("\n", &[7]),
    ] {
        followed.append("x.csv", text);
        assert_eq!(followed.more(&mut *source).unwrap(), rows, "{text:?}");
    }
    let place = source.place();
    assert_eq!((place.offset, place.line), (6, 10));
    assert_eq!(good(&followed.checked()).len(), 6);
    // An incomplete row is not a row yet.
    followed.append("x.csv", "8");
    assert_eq!(good(&followed.checked()).len(), 6);
    let mut again = followed.open();
    again.resume(&place).unwrap();
    followed.append("x.csv", "9\n");
    assert_eq!(followed.more(&mut *again).unwrap(), [89]);
}

#[test]
fn lines_before_the_header_grow() {
    let mut followed = Followed::new("x.csv");
    followed.settings.skip_lines = Some(2);
    followed.append("x.csv", "");
    let mut source = followed.open();
    for (text, rows) in
        [("made", &[][..]), (" by\n", &[]), ("\"me", &[]), ("\na", &[]), ("\n1\n2", &[1])]
    {
        followed.append("x.csv", text);
        assert_eq!(followed.more(&mut *source).unwrap(), rows, "{text:?}");
    }
    let place = source.place();
    assert_eq!((place.offset, place.line), (1, 5));
    let mut again = followed.open();
    again.resume(&place).unwrap();
    followed.append("x.csv", "\n");
    assert_eq!(followed.more(&mut *again).unwrap(), [2]);
    assert_eq!(good(&followed.checked()).len(), 2);
}

#[test]
fn a_long_record_grows() {
    let mut followed = Followed::new("x.jsonl");
    followed.settings.record_bytes_max = 20;
    followed.append("x.jsonl", "{\"a\":1}\n");
    let mut source = followed.open();
    assert_eq!(followed.more(&mut *source).unwrap(), [1]);
    let place = source.place();
    for _ in 0..3 {
        followed.append("x.jsonl", &" ".repeat(15));
        assert_eq!(followed.more(&mut *source).unwrap(), [0i64; 0]);
        assert_eq!(source.place(), place, "half a row moves nothing");
    }
    followed.append("x.jsonl", "\n{\"a\":2}\n");
    assert_eq!(followed.more(&mut *source).unwrap(), [2]);
    let rows = followed.checked();
    assert!(bad(&rows)[0].1.contains("longer than 20 bytes"));
}

#[test]
fn a_file_is_only_appended_to() {
    let broken = |hurt: &dyn Fn(&Followed)| -> Error {
        let followed = Followed::new("x.csv");
        followed.append("x.csv", "a\n1\n2\n3\n");
        let mut source = followed.open();
        assert_eq!(followed.more(&mut *source).unwrap(), [1, 2, 3]);
        hurt(&followed);
        let error = followed.more(&mut *source).unwrap_err();
        assert_eq!(source.poll(1).unwrap_err(), error, "the error stays");
        error
    };
    let disk = |f: &Followed| f.folder.env.disk.clone();
    for (hurt, why) in [
        (
            (&|f: &Followed| disk(f).remove(&f.settings.path).unwrap()) as &dyn Fn(&Followed),
            "was removed",
        ),
        (&|f| disk(f).open_append(&f.settings.path).unwrap().set_len(5).unwrap(), "was cut"),
        (
            &|f| {
                f.folder.put("y.csv", "a\n1\n2\n3\n4\n");
                disk(f).rename(&f.folder.path("y.csv"), &f.settings.path).unwrap();
            },
            "was replaced",
        ),
        (&|f| drop(f.folder.put("x.csv", "a\n1\n2\n4\n5\n")), "was rewritten"),
    ] {
        let error = broken(hurt);
        assert!(error.what.contains(why) && error.what.contains("x.csv, row 3"), "{error}");
    }
}

#[test]
fn a_folder_gets_files() {
    let followed = Followed::new("");
    let mut source = followed.open();
    let put = |name: &str, content: &[u8]| drop(followed.folder.put(name, content));
    assert_eq!(followed.more(&mut *source).unwrap(), [0i64; 0]);
    put("b1.csv", b"a\n1\n2");
    assert_eq!(followed.more(&mut *source).unwrap(), [1], "it may still grow");
    followed.append("b1.csv", "0\n3");
    assert_eq!(followed.more(&mut *source).unwrap(), [20]);
    put(".b2.csv", b"a\n9");
    put("b2.csv.gz", &zipped(b"a\n4\n5"));
    put("b3.csv", b"");
    assert_eq!(followed.more(&mut *source).unwrap(), [3, 4, 5], "the next one ends the one before");
    put("b4.jsonl", b"{\"a\":6}\n{\"a\":7}");
    assert_eq!(followed.more(&mut *source).unwrap(), [6]);
    let place = source.place();
    let file = place.file.as_ref().unwrap();
    assert_eq!((place.offset, &*file.name, file.before.files), (6, "b4.jsonl", 3));
    assert_eq!(good(&followed.checked()).len(), 6);

    // The file that was read may have grown, and other files may have been added.
    let mut again = followed.open();
    again.resume(&place).unwrap();
    followed.append("b4.jsonl", "\n");
    put("b5.csv", b"a\n8\n");
    assert_eq!(followed.more(&mut *again).unwrap(), [7, 8]);

    put("b0.csv", b"a\n0\n");
    let error = followed.more(&mut *again).unwrap_err();
    assert!(error.what.contains("b0.csv arrived too late"), "{error}");
    let mut late = followed.open();
    let error = late.resume(&place).unwrap_err();
    assert!(error.what.contains("4 files sort before b4.jsonl"), "{error}");
    followed.folder.env.disk.remove(&followed.folder.path("b0.csv")).unwrap();
    followed.folder.env.disk.remove(&followed.folder.path("b1.csv")).unwrap();
    late.resume(&place).unwrap();
    assert_eq!(followed.more(&mut *late).unwrap(), [7, 8], "what was read may be removed");
    followed.folder.env.disk.remove(&followed.folder.path("b4.jsonl")).unwrap();
    let error = late.resume(&place).unwrap_err();
    assert!(error.what.contains("b4.jsonl, which was being read, has been removed"), "{error}");
}

#[test]
fn what_can_not_be_followed() {
    let followed = Followed::new("x.csv");
    let refused = |content: &[u8]| {
        followed.folder.put("x.csv", content);
        followed.folder.open(&followed.settings, &columns()).map(|_| ()).unwrap_err()
    };
    assert!(refused(&zipped(b"a\n")).what.contains("compressed"));
    assert!(refused(b"\xff\xfea\0\n\0").what.contains("not in UTF-8"));
}

#[test]
fn idle_costs_little() {
    let sim = tidemill_sim::SimEnv::new(1);
    let env = sim.env();
    let path = std::path::Path::new("/x.csv");
    env.disk.create(path).unwrap().write_all(b"a\n1\n").unwrap();
    let settings = FilesSettings { follow: true, ..FilesSettings::new(path) };
    let mut source =
        tidemill_connect::files::open(&settings, &columns(), &env).unwrap().remove(0).1;
    assert!(matches!(source.poll(9), Ok(Polled::Rows(_))));
    assert!(matches!(source.poll(9), Ok(Polled::Pending)));
    sim.disk.take_calls();
    for _ in 0..1000 {
        assert!(matches!(source.poll(9), Ok(Polled::Pending)));
    }
    assert!(sim.disk.take_calls().len() <= 2000, "each look asks for two lengths");
}
