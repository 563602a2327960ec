use tidemill_connect::source::contract::Taken;
use tidemill_connect::{FilesSettings, Polled, Unclosed};
use tidemill_core::{Column, DataType, Kind, Value};

use crate::{bad, every_type, good, schema, zipped, Folder};

fn text(column: &str) -> Column {
    Column::new(column, DataType::Str)
}

fn int(column: &str) -> Column {
    Column::new(column, DataType::Int)
}

/// Returns the rows of a CSV file with this content.
fn read(
    content: impl AsRef<[u8]>,
    columns: Vec<Column>,
    set: impl Fn(&mut FilesSettings),
) -> Vec<Taken> {
    let folder = Folder::new();
    let mut settings = FilesSettings::new(folder.put("x.csv", content));
    set(&mut settings);
    folder.rows(&settings, &schema(columns))
}

fn refused(
    content: &str,
    columns: Vec<Column>,
    set: impl Fn(&mut FilesSettings),
) -> tidemill_core::Error {
    let folder = Folder::new();
    let mut settings = FilesSettings::new(folder.put("x.csv", content));
    set(&mut settings);
    folder.open(&settings, &schema(columns)).map(|_| ()).expect_err("an error")
}

#[test]
fn every_type_is_read() {
    let folder = Folder::new();
    let content = "i,f,b,s,y,t,d,l,a\n\
        -7, 1.5 ,TRUE, x ,0x00fF,2024-02-29T12:00:00Z,12.5,\"[\"\"x\"\", null]\",\"{\"\"k\"\": [1]}\"\n\
        \" 8 \",-inf,0,\"\",0x,1970-01-01,-0.01,[],null\n";
    let settings = FilesSettings::new(folder.put("x.csv", content));
    let rows = folder.rows(&settings, &every_type(false));
    assert_eq!(bad(&rows), []);
    let expected = vec![
        vec![
            Value::Int(-7),
            Value::Float(1.5),
            Value::Bool(true),
            Value::str(" x "),
            Value::Bytes(vec![0, 255].into()),
            Value::Timestamp(1_709_208_000_000_000),
            Value::Decimal(1250, 2),
            Value::List(vec![Value::str("x"), Value::Null].into()),
            Value::Any(vec![0x81, 0xa1, b'k', 0x91, 1].into()),
        ],
        vec![
            Value::Int(8),
            Value::Float(f64::NEG_INFINITY),
            Value::Bool(false),
            Value::str(""),
            Value::Bytes(vec![].into()),
            Value::Timestamp(0),
            Value::Decimal(-1, 2),
            Value::List(vec![].into()),
            Value::Any(vec![0xc0].into()),
        ],
    ];
    assert_eq!(good(&rows), expected);
}

#[test]
fn unfit_values_make_bad_rows() {
    for (ty, field, reason) in [
        (DataType::Int, "1_0", "column 'x': '1_0' is not an integer"),
        (DataType::Int, "1.0", "column 'x': '1.0' is not an integer"),
        (
            DataType::Int,
            "9223372036854775808",
            "column 'x': '9223372036854775808' is out of range for int",
        ),
        (DataType::Int, "", "column 'x': null, but the column may not be null"),
        (DataType::Float, "1e999", "column 'x': '1e999' is out of range for float"),
        (DataType::Bool, "yes", "column 'x': 'yes' is not a bool (true, false, 1 or 0)"),
        (
            DataType::Decimal(2),
            "1.005",
            "column 'x': '1.005' has more than 2 digits after the point",
        ),
        (
            DataType::Bytes,
            "0x1",
            "column 'x': '0x1' is not bytes (0x and two hexadecimal digits each)",
        ),
        (DataType::Timestamp, "soon", "column 'x': 'soon' is not an ISO 8601 date or time"),
        (
            DataType::Any,
            "{",
            "column 'x': '{' is not JSON: EOF while parsing an object at column 1",
        ),
        (
            DataType::List(Box::new(DataType::Int)),
            "[1.5]",
            "column 'x': item 0: '1.5' is not an integer",
        ),
        (DataType::List(Box::new(DataType::Int)), "7", "column 'x': expected an array, found '7'"),
        (DataType::Str, "\"a\"b", "column 'x': text after the closing quote"),
        (DataType::Str, "a,b", "3 fields instead of 2"),
    ] {
        let content = format!("k,x\n1,{field}\n");
        let rows = read(content, vec![int("k"), Column::new("x", ty)], |_| {});
        assert_eq!(bad(&rows), [(2, reason)]);
    }
}

#[test]
fn reading_goes_on_behind_bad_rows() {
    let content = "a,b\r\n1,x\r\n\r\nz,y\r\n2,\"p\r\nq\"\r\n3\r\n4,ÿ\r\n5,w\r\n6,\"open\r\n7,v";
    let content: Vec<u8> = content.chars().map(|c| c as u8).collect();
    let rows = read(content, vec![int("a"), text("b")], |s| s.unclosed = Some(Unclosed::Skip));
    assert_eq!(
        bad(&rows),
        [
            (4, "column 'a': 'z' is not an integer"),
            (7, "1 fields instead of 2"),
            (8, "column 'b': not valid text in the file's encoding"),
            (10, "not complete: a quote is not closed before the end of the file"),
        ]
    );
    let expected = [(1, "x"), (2, "p\r\nq"), (5, "w"), (7, "v")];
    assert_eq!(good(&rows), expected.map(|(a, b)| vec![Value::Int(a), Value::str(b)]));
    let Taken::Bad(row) = &rows[6] else { panic!("{:?}", rows[6]) };
    assert_eq!((row.offset, &*row.raw), (6, "6,\"open"));
    assert!(row.origin.ends_with("x.csv"));
}

#[test]
fn empty_files_have_no_rows() {
    for content in ["", "\n\r\n", "a", "a\n", "a\r\n\r\n", "\u{feff}a\n"] {
        assert_eq!(read(content, vec![int("a")], |_| {}), [], "{content:?}");
    }
}

#[test]
fn nulls() {
    let both = || vec![text("s").nullable(), text("t"), int("i").nullable()];
    let null = Value::Null;
    let rows = read("s,t,i\n,,\n\"\",\"\",\"\"\nNA,NA,1\n", both(), |_| {});
    let expected = [
        vec![null.clone(), Value::str(""), null.clone()],
        vec![Value::str(""), Value::str(""), null.clone()],
        vec![Value::str("NA"), Value::str("NA"), Value::Int(1)],
    ];
    assert_eq!(good(&rows), expected);
    let nulls = |s: &mut FilesSettings| s.nulls = Some(vec!["NA".into(), "-".into()]);
    let rows = read("s,t,i\nNA,,-\n,\"NA\",NA\n\"NA\",x,\n-,NA,1\n", both(), nulls);
    let expected = [
        vec![null.clone(), Value::str(""), null.clone()],
        vec![Value::str(""), Value::str("NA"), null.clone()],
    ];
    assert_eq!(good(&rows), expected);
    assert_eq!(
        bad(&rows),
        [
            (4, "column 'i': '' is not an integer"),
            (5, "column 't': null, but the column may not be null"),
        ]
    );
}

#[test]
fn columns_are_found_by_the_header() {
    let columns =
        || vec![int("a"), text("b").nullable(), int("c").default(Value::Int(9)), text("d")];
    let map = |s: &mut FilesSettings| {
        s.columns.insert("d".into(), "D name".into());
    };
    let rows = read("extra, D name ,a\nx,y,1\n", columns(), map);
    let row = vec![Value::Int(1), Value::Null, Value::Int(9), Value::str("y")];
    assert_eq!(good(&rows), [row]);

    let error = refused("a;D nam\n", columns(), |s| {
        map(s);
        s.delimiter = Some(';');
    });
    assert_eq!(error.kind, Kind::Input);
    assert!(error.what.ends_with("x.csv has no column 'D name'"), "{error}");
    assert_eq!(error.help, "did you mean 'D nam'? Say columns={\"d\": \"D nam\"}");
    let error = refused("zzzzz,a\n", columns(), map);
    assert!(error.help.starts_with("its columns are zzzzz, a: map one"), "{error}");
    let error = refused("a,D name,a\n", columns(), map);
    assert!(error.what.ends_with("has two columns named 'a'"), "{error}");
    let error = refused("a\n", vec![int("a")], |s| {
        s.columns.insert("aa".into(), "b".into());
    });
    assert_eq!((error.kind, &*error.help), (Kind::Setting, "did you mean 'a'?"));
    let error = refused("\"a\n", vec![int("a")], |_| {});
    assert!(error.what.contains("the header is not complete"), "{error}");
}

#[test]
fn files_without_a_header() {
    let columns = || vec![int("a"), text("b")];
    let row = [vec![Value::Int(1), Value::str("x")]];
    assert_eq!(good(&read("1,x\n", columns(), |s| s.header = Some(false))), row);
    let order = |s: &mut FilesSettings| s.order = Some(vec!["b".into(), "-".into(), "a".into()]);
    assert_eq!(good(&read("x,?,1\n", columns(), order)), row);
    let replaced = |s: &mut FilesSettings| {
        order(s);
        s.header = Some(true);
    };
    assert_eq!(good(&read("wrong,wrong,wrong\nx,?,1\n", columns(), replaced)), row);
    let error = refused("x\n", columns(), |s| s.order = Some(vec!["b".into()]));
    assert!(error.what.ends_with("has no column 'a'"), "{error}");
}

#[test]
fn a_header_with_another_delimiter_says_which() {
    let columns = || vec![int("a"), text("b")];
    let help = |content: &str, delimiter: Option<char>| {
        refused(content, columns(), |s| s.delimiter = delimiter).help
    };
    assert_eq!(help("a;b\n", None), "its header is one column, 'a;b': write delimiter=';'");
    assert_eq!(help("a\tb\n", None), "its header is one column, 'a\\tb': write delimiter='\\t'");
    assert_eq!(help("a,b\n", Some(';')), "its header is one column, 'a,b': write delimiter=','");
    assert!(help("yyyy;d,zzzz\n", None).starts_with("its columns are yyyy;d, zzzz: map one"));
    let report = help("Report of May\na,b\n", None);
    assert!(
        report.starts_with("its first line is \"Report of May\": if the header is"),
        "{report}"
    );
    assert!(help("aa\n", None).starts_with("did you mean 'aa'?"));
    let row = help("7,x\n", None);
    assert_eq!(row, "its first line is \"7, x\": if that is a row, write header=False");
    let one = refused("zzzz\n", vec![int("a")], |_| ()).help;
    assert!(one.starts_with("its columns are zzzz: map one"), "{one}");
}

#[test]
fn lines_before_the_header_are_skipped() {
    let columns = || vec![int("a"), text("b")];
    let row = [vec![Value::Int(1), Value::str("x")]];
    let content = "one \"quote\r\n\n,,,\na,b\n1,x\n?,y\n";
    let rows = read(content, columns(), |s| s.skip_lines = Some(3));
    assert_eq!(good(&rows), row);
    assert_eq!(bad(&rows), [(6, "column 'a': '?' is not an integer")]);
    let rows = read(content, columns(), |s| {
        s.skip_lines = Some(4);
        s.order = Some(vec!["a".into(), "b".into()]);
    });
    assert_eq!(good(&rows), row);
    assert_eq!(bad(&rows)[0].0, 6);
    // A line may be longer than a row may be, and than what is read at once.
    let long = format!("{}\na,b\n1,x\n", "y".repeat(1 << 20));
    let rows = read(long, columns(), |s| (s.skip_lines, s.record_bytes_max) = (Some(1), 100));
    assert_eq!(good(&rows), row);
    for content in ["", "x", "x\n", "x\n\n"] {
        assert!(read(content, columns(), |s| s.skip_lines = Some(2)).is_empty(), "{content:?}");
    }
    let error = refused("x\n\n\n", columns(), |s| s.skip_lines = Some(0));
    assert!(error.what.ends_with("has no column 'a'"), "{error}");
}

#[test]
fn dialects_and_encodings() {
    let columns = || vec![text("a"), text("b")];
    let expected = [vec![Value::str("é€"), Value::str("\"")]];
    let utf16 = |big: bool, mark: bool| -> Vec<u8> {
        let text = if mark { "\u{feff}a,b\né€,\"\"\"\"\n" } else { "a,b\né€,\"\"\"\"\n" };
        let bytes = |u: u16| if big { u.to_be_bytes() } else { u.to_le_bytes() };
        text.encode_utf16().flat_map(bytes).collect()
    };
    let latin = b"a,b\n\xe9\x80,\"\"\"\"\n".to_vec();
    let utf8 = "\u{feff}a,b\né€,\"\"\"\"\n".as_bytes().to_vec();
    for (content, encoding) in [
        (utf8.clone(), None),
        (utf8, Some("windows-1252")),
        (utf16(false, true), None),
        (utf16(true, true), None),
        (utf16(true, true), Some("utf-16")),
        (utf16(false, false), Some("utf-16le")),
        (latin, Some("windows-1252")),
    ] {
        let set = |s: &mut FilesSettings| s.encoding = encoding.map(str::to_string);
        assert_eq!(good(&read(&content, columns(), set)), expected);
        assert_eq!(good(&read(zipped(&content), columns(), set)), expected);
    }
    let odd = |s: &mut FilesSettings| {
        s.delimiter = Some('|');
        s.quote = Some("'".into());
    };
    assert_eq!(good(&read("a|b\né€|'\"'\n", columns(), odd)), expected);
    let none = |s: &mut FilesSettings| s.quote = Some(String::new());
    assert_eq!(good(&read("a,b\né€,\"\n", columns(), none)), expected);

    // A lone surrogate is invalid in UTF-16, so the row is bad and not full of replacements.
    let mut broken = utf16(false, true);
    broken.extend([b'x', 0, 0, 0xd8, b',', 0, b'y', 0, b'\n', 0]);
    broken.extend("z,w".encode_utf16().flat_map(u16::to_le_bytes));
    let rows = read(broken, columns(), |_| {});
    assert_eq!(bad(&rows), [(3, "column 'a': not valid text in the file's encoding")]);
    assert_eq!(good(&rows).len(), 2);

    let setting = |set: fn(&mut FilesSettings)| refused("a,b\n", columns(), set);
    assert!(setting(|s| s.encoding = Some("utf-99".into())).what.contains("no encoding 'utf-99'"));
    assert!(setting(|s| s.delimiter = Some('é')).what.contains("ASCII"));
    assert!(setting(|s| s.delimiter = Some('"')).what.contains("same character"));
    assert!(setting(|s| s.quote = Some("ab".into())).what.contains("one character"));
    assert!(setting(|s| s.record_bytes_max = 0).what.contains("record_bytes_max"));
}

#[test]
fn timestamps_by_format() {
    let columns = || vec![Column::new("t", DataType::Timestamp), int("i")];
    let format = |column: &str, format: &str| {
        let (column, format) = (column.to_string(), format.to_string());
        move |s: &mut FilesSettings| {
            s.formats.insert(column.clone(), format.clone());
        }
    };
    let rows =
        read("t,i\n29.02.2024 12:00,1\n2024-02-29,2\n", columns(), format("t", "%d.%m.%Y %H:%M"));
    assert_eq!(good(&rows), [[Value::Timestamp(1_709_208_000_000_000), Value::Int(1)]]);
    assert_eq!(bad(&rows).len(), 1);
    let error = refused("t,i\n", columns(), format("i", "%d"));
    assert!(error.what.contains("only timestamps have formats"), "{error}");
    let error = refused("t,i\n", columns(), format("t", "%Q"));
    assert!(error.what.contains("format of column 't'"), "{error}");
}

#[test]
fn a_quote_that_is_not_closed_ends_the_reading_behind_the_rows_before_it() {
    let columns = schema(vec![int("a"), text("b")]);
    for (open, max) in [("2,\"y\n3,z\n", 1 << 20), ("2,\"y\n3,zzzzzzzzzzzz\n4,\"w\"\n", 12)] {
        let folder = Folder::new();
        let path = folder.put("x.csv", format!("a,b\n1,x\n\n{open}"));
        let settings = FilesSettings { record_bytes_max: max, ..FilesSettings::new(&path) };
        let source = || folder.open(&settings, &columns).unwrap().remove(0).1;
        let mut first = source();
        let Polled::Rows(chunk) = first.poll(10).unwrap() else { panic!("a row") };
        assert_eq!((chunk.rows(), chunk.next_offset), (1, 1));
        let place = first.place();
        assert_eq!(place.offset, 1);
        let error = first.poll(10).unwrap_err();
        assert_eq!(error.kind, Kind::Input);
        assert!(error.what.contains("line 4: the row is not complete"), "{error}");
        assert!(error.help.contains("unclosed=\"skip\""), "{error}");
        assert_eq!(first.poll(10).unwrap_err().what, error.what, "it stays so");
        // After the file was corrected, reading continues there.
        folder.put("x.csv", "a,b\n1,x\n\n2,\"y\"\n3,z\n");
        let mut again = source();
        again.resume(&place).unwrap();
        let Polled::Rows(chunk) = again.poll(10).unwrap() else { panic!("rows") };
        assert_eq!((chunk.offsets, chunk.bad.len()), (vec![1, 2], 0));
    }
}

#[test]
fn long_records_stay_out_of_memory() {
    let columns = || vec![int("a"), text("b")];
    let long = "x".repeat(3 << 20);
    let content = format!("a,b\n1,{long}\n2,y\n3,\"{long}\n\"\n4,{}\n", "z".repeat((1 << 20) - 2));
    let rows = read(content, columns(), |s| s.unclosed = Some(Unclosed::Skip));
    let lines: Vec<u64> = bad(&rows).iter().map(|b| b.0).collect();
    assert_eq!(lines, [2, 4, 5]);
    assert!(bad(&rows)[0].1.starts_with("longer than 1048576 bytes"));
    assert_eq!(good(&rows).len(), 2);
    let Taken::Bad(row) = &rows[0] else { panic!() };
    assert_eq!(row.raw.len(), 1024);
    // Commas must not fill memory with the places of fields, either.
    let commas = format!("a,b\n{}\n1,x\n", ",".repeat(4 << 20));
    let rows = read(commas, columns(), |_| {});
    assert_eq!((bad(&rows).len(), good(&rows).len()), (1, 1));
    let nul = read("a,b\n1,\0\n\0,x\n", columns(), |_| {});
    assert_eq!((bad(&nul).len(), good(&nul).len()), (1, 1));
}

#[test]
fn decoded_records_of_about_a_buffer() {
    let latin = |s: &mut FilesSettings| s.encoding = Some("windows-1252".into());
    for length in (131_072 - 40)..(131_072 + 4) {
        let mut content = b"b\n".to_vec();
        content.extend(vec![0xe9; length / 2]);
        content.extend(vec![b'x'; length % 2]);
        content.extend(b"\ny");
        assert_eq!(good(&read(content, vec![text("b")], latin)).len(), 2, "{length}");
    }
}

#[test]
fn many_rows_and_places() {
    let mut content = "\u{feff}a,b\n".to_string();
    for i in 0..200_000 {
        content.push_str(&format!("{i},\"x\ny\"\n"));
    }
    let bytes = content.as_bytes();
    for content in [bytes.to_vec(), zipped(bytes)] {
        let folder = Folder::new();
        let settings = FilesSettings::new(folder.put("x.csv", content));
        let schema = schema(vec![int("a"), text("b")]);
        let mut source = folder.open(&settings, &schema).unwrap().remove(0).1;
        let mut places = vec![source.place()];
        while let Polled::Rows(_) = source.poll(17_001).unwrap() {
            places.push(source.place());
        }
        for place in places.iter().rev() {
            source.resume(place).unwrap();
            assert_eq!((source.offset(), &source.place()), (place.offset, place));
            match source.poll(10).unwrap() {
                Polled::Rows(chunk) => {
                    assert_eq!(chunk.batch.value(0, 0), Value::Int(place.offset as i64));
                    assert_eq!(chunk.offsets[0], place.offset);
                }
                _ => assert_eq!(place.offset, 200_000),
            }
        }
        let mut wrong = places[3].clone();
        wrong.bytes += 1;
        assert!(source.resume(&wrong).is_err());
        assert!(source.poll(1).is_err(), "a failed resume leaves the source failed");
    }
}
