//! Packets between processes, records of a cluster's log, and parts of its snapshots.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_cluster::wire;
use tidemill_core::encode::hash128;
use tidemill_fuzz::{settles, Parts};

/// Returns the bytes that one item is encoded to.
fn put<T>(put: impl Fn(&T, &mut Vec<u8>)) -> impl Fn(&T) -> Vec<u8> {
    move |item| {
        let mut out = Vec::new();
        put(item, &mut out);
        out
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    match parts.u8() % 4 {
        0 => drop(settles(parts.0, |mut b| wire::take_packet(&mut b), put(wire::put_packet))),
        1 => drop(settles(parts.0, |mut b| wire::take_record(&mut b), put(wire::put_record))),
        2 => drop(settles(parts.0, |mut b| wire::take_value(&mut b), put(wire::put_value))),
        _ => {
            // An object has a checksum of all before it.
            let mut object = b"TMob".to_vec();
            object.extend_from_slice(&wire::VERSION.to_le_bytes());
            object.extend_from_slice(parts.0);
            object.extend_from_slice(&hash128(&object).to_le_bytes());
            settles(&object, wire::take_manifest_object, put(wire::put_manifest_object));
            wire::take_part_of_before(&object);
        }
    }
});
