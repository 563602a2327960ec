//! Reading a file by places, with one large read for many small ones.

use std::io::{self, SeekFrom};

use tidemill_env::ReadFile;

/// A part of a file in memory, which moves with the requests. It is as long as the requested part,
/// and not much longer.
pub(crate) struct Window {
    file: Box<dyn ReadFile>,
    /// The length of the file, in bytes.
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

/// The smallest size of a read, in bytes.
const READ_BYTES: u64 = 256 << 10;

impl Window {
    pub(crate) fn new(file: Box<dyn ReadFile>, len: u64) -> Window {
        Window { file, len, start: 0, bytes: Vec::new() }
    }

    /// Returns `size` bytes from `at` on; fewer if the file ends before.
    pub(crate) fn get(&mut self, at: u64, size: u64) -> io::Result<&[u8]> {
        let at = at.min(self.len);
        let size = size.min(self.len - at);
        if at < self.start || at + size > self.start + self.bytes.len() as u64 {
            let read = size.max(READ_BYTES).min(self.len - at);
            self.bytes.clear();
            self.bytes.resize(read as usize, 0);
            self.start = at;
            self.file.seek(SeekFrom::Start(at))?;
            if let Err(e) = self.file.read_exact(&mut self.bytes) {
                self.bytes.clear();
                return Err(e);
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + size as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidemill_env::Disk;

    use super::*;

    #[test]
    fn a_window_shows_what_the_file_holds() {
        let sim = tidemill_sim::SimEnv::new(1);
        let path = Path::new("/file");
        let bytes: Vec<u8> = (0..700_000_u32).map(|i| ((i * i) >> 7) as u8).collect();
        sim.disk.create(path).unwrap().write_all(&bytes).unwrap();
        let mut window = Window::new(sim.disk.open_read(path).unwrap(), bytes.len() as u64);
        for _ in 0..1000 {
            let at = sim.random.below(710_000) as usize;
            let size = sim.random.below([10, 1000, 600_000][sim.random.below(3) as usize]) as usize;
            let expected = &bytes[at.min(bytes.len())..(at + size).min(bytes.len())];
            assert_eq!(window.get(at as u64, size as u64).unwrap(), expected);
        }
        let mut window = Window::new(sim.disk.open_read(path).unwrap(), bytes.len() as u64);
        sim.disk.truncate(path, 10).unwrap();
        assert!(window.get(500_000, 600_000).is_err());
    }
}
