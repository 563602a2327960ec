//! Events as files that an engine reads.

use std::io::Write as _;
use std::path::Path;

use tidemill_core::Schema;
use tidemill_env::Env;
use tidemill_reference::InputRow;

/// Writes rows as JSON lines, each in the line of its offset. The lines between are not rows.
pub fn write_file(env: &Env, path: &str, schema: &Schema, rows: &[InputRow]) {
    let (mut text, mut line) = (Vec::new(), 0);
    for row in rows {
        while line < row.offset {
            text.extend_from_slice(b"oops\n");
            line += 1;
        }
        tidemill_connect::values::write_row(schema, &row.values, &mut text);
        text.push(b'\n');
        line += 1;
    }
    let path = Path::new(path);
    let mut out = env.disk.create(path).unwrap();
    out.write_all(&text).unwrap();
    out.sync().unwrap();
    env.disk.sync_dir(path.parent().unwrap()).unwrap();
}
