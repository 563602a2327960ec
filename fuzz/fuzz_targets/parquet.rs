//! Parquet files. The library may panic at damaged ones, which the source catches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_connect::FilesSettings;
use tidemill_core::{Column, DataType, Schema};
use tidemill_fuzz::{catching, every_type, read_file};

fuzz_target!(|bytes: &[u8]| {
    catching(|| {
        let settings = FilesSettings::new("/in/x.parquet");
        let columns = [("a", DataType::Int), ("b", DataType::Str)];
        let columns = columns.map(|(name, ty)| Column::new(name, ty).nullable()).to_vec();
        read_file(&settings, &Schema::new(columns).into(), bytes);
        read_file(&settings, &every_type(true), bytes);
    });
});
