//! CSV files, of every dialect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::{FilesSettings, Unclosed};
use tidemill_fuzz::{every_type, read_file, Parts};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let flags = parts.u16();
    let flag = |nth: u32| flags >> nth & 1 == 1;
    let mut settings = FilesSettings::new(match flag(0) {
        true => "/in/x.csv",
        false => "/in/x.tsv",
    });
    settings.delimiter = flag(1).then_some(';');
    settings.quote = flag(2).then(|| if flag(3) { "'".into() } else { String::new() });
    settings.unclosed = flag(4).then_some(Unclosed::Skip);
    settings.encoding = [None, Some("latin1"), Some("utf-16le"), Some("shift_jis")]
        [usize::from(flags >> 5 & 3)]
    .map(String::from);
    settings.header = flag(7).then_some(flag(8));
    settings.order = flag(9).then(|| ["t", "i", "s"].map(String::from).to_vec());
    settings.nulls = flag(10).then(|| ["NA", ""].map(String::from).to_vec());
    settings.record_bytes_max = if flag(11) { 64 } else { 1 << 16 };
    settings.follow = flag(12);
    if flag(13) {
        settings.formats.insert("t".into(), "%d.%m.%Y %H:%M:%S".into());
    }
    read_file(&settings, &every_type(!flag(14)), parts.0);
});
