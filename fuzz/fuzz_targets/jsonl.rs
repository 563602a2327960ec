//! Files of JSON lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::files::UnknownFields;
use tidemill_connect::FilesSettings;
use tidemill_fuzz::{every_type, read_file, Parts};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let flags = parts.u8();
    let flag = |nth: u32| flags >> nth & 1 == 1;
    let mut settings = FilesSettings::new("/in/x.jsonl");
    settings.unknown_fields = flag(0).then_some(UnknownFields::Refuse);
    settings.encoding = flag(1).then(|| "utf-16be".into());
    settings.record_bytes_max = if flag(2) { 64 } else { 1 << 16 };
    settings.follow = flag(3);
    if flag(4) {
        settings.columns.insert("i".into(), "number".into());
        settings.formats.insert("t".into(), "unix_ms".into());
    }
    read_file(&settings, &every_type(!flag(5)), parts.0);
});
