//! Messages in Avro, by any writer's schema: a schema, a zero, and messages that begin with their
//! length.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidemill_connect::message::{derive_avro, Asked, AvroSchema, AvroValues, Schemas};
use tidemill_connect::{MessageFormat, MessageRows, MessageSettings, MessageValues};
use tidemill_core::Schema;
use tidemill_fuzz::{comes_back, every_type, row_of, Parts};

#[derive(Debug)]
struct One(Arc<AvroSchema>);

impl Schemas for One {
    fn schema(&self, _: u32) -> Asked {
        Asked::Found(self.0.clone())
    }
}

fn decoder(schema: &Schema, avro: &Arc<AvroSchema>) -> MessageRows {
    let schemas: Option<Arc<dyn Schemas>> = Some(Arc::new(One(avro.clone())));
    let format = MessageFormat::Avro;
    let settings = MessageSettings { format, schemas, ..MessageSettings::default() };
    MessageRows::new(schema, &settings).unwrap()
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let schema = every_type(true);
    let text = std::str::from_utf8(parts.until(0)).unwrap_or("{}");
    // An empty text stands for the schema that rows are written with.
    let own = derive_avro("row", &schema).expect("there is one for every type");
    let Ok(avro) = AvroSchema::parse(&[if text.is_empty() { &own } else { text }]) else { return };
    let (avro, own) = (Arc::new(avro), Arc::new(AvroSchema::parse(&[&own]).unwrap()));
    let mut reader = decoder(&schema, &avro);
    for _ in 0..8 {
        let len = parts.u8().into();
        let message = [&[0; 5], parts.bytes(len)].concat();
        if let Ok(row) = row_of(&mut reader, &schema, &message) {
            let values = AvroValues::new(&schema, 7, &own).unwrap();
            let encoder = MessageValues::avro(&schema, values, &[]).unwrap();
            comes_back(&mut decoder(&schema, &own), &encoder, &schema, &row);
        }
    }
});
