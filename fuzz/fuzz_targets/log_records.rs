//! Records of the logs of one process: rows, verdicts and cuts. Also the crash guard's note, and the
//! app in a manifest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_engine::fuzz;
use tidemill_fuzz::{every_type, settles, Parts};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let again = |bytes: &Vec<u8>| bytes.clone();
    match parts.u8() % 6 {
        0 => {
            let schema = every_type(true);
            settles(parts.0, |bytes| fuzz::rows(&schema, bytes), again);
        }
        1 => drop(settles(parts.0, fuzz::verdict, again)),
        2 => drop(settles(parts.0, |bytes| fuzz::cut(3, bytes), again)),
        3 => drop(settles(parts.0, |bytes| fuzz::cut(4, bytes), again)),
        4 => drop(settles(parts.0, fuzz::note, again)),
        _ => drop(settles(parts.0, fuzz::app, again)),
    }
});
