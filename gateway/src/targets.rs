//! Targets with a fragment, as `/tables/rooms/rows#key`. Whoever parses the heads of requests drops it, and does not
//! tell. So the bytes are looked at as they are read: where heads begin follows from the lengths of bodies.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The target of a request has a fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment;

/// Which request of a connection is the first whose target has a fragment: it is the last one, too, because it is
/// refused.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    /// The number of that request, from 1 on; 0 as long as there is none.
    first: AtomicU64,
    /// How many requests were asked for.
    asked: AtomicU64,
}

impl Fragments {
    /// Whether the next request is the one.
    pub(crate) fn next(&self) -> Option<Fragment> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        (self.first.load(Ordering::Relaxed) == number).then_some(Fragment)
    }
}

/// A connection whose heads are looked at.
pub(crate) struct Watched<S> {
    inner: S,
    heads: Heads,
}

impl<S> Watched<S> {
    /// A connection, and what is found on it.
    pub(crate) fn new(inner: S) -> (Watched<S>, Arc<Fragments>) {
        let heads = Heads::default();
        let found = heads.found.clone();
        (Watched { inner, heads }, found)
    }
}

/// Where the bytes of a connection are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum At {
    /// Before or in the first line of a request.
    #[default]
    Begin,
    Headers,
    Body,
    /// Before or in the line with a chunk's size.
    Size,
    Chunk,
    /// Behind the last chunk.
    Trailers,
}

/// Finds the heads of requests. What no server takes ends the connection, so it need not be understood.
#[derive(Debug, Default)]
struct Heads {
    at: At,
    /// Bytes that are left of a body or a chunk.
    left: u64,
    is_chunked: bool,
    /// What has come of a line that is not whole.
    line: Vec<u8>,
    count: u64,
    found: Arc<Fragments>,
}

impl Heads {
    /// Goes on behind these bytes.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if matches!(self.at, At::Body | At::Chunk) {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[count..];
                self.left -= count as u64;
                match self.at {
                    _ if self.left > 0 => {}
                    At::Body => self.at = At::Begin,
                    _ => self.at = At::Size,
                }
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                return self.line.extend_from_slice(bytes);
            };
            let mut line = std::mem::take(&mut self.line);
            match line.is_empty() {
                true => self.pass_line(&bytes[..end]),
                false => {
                    line.extend_from_slice(&bytes[..end]);
                    self.pass_line(&line);
                }
            }
            bytes = &bytes[end + 1..];
        }
    }

    fn pass_line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.at {
            // Empty lines may be before a request, and are behind a chunk.
            At::Begin | At::Size if line.is_empty() => {}
            At::Begin => {
                self.count += 1;
                if has_fragment(line) && self.found.first.load(Ordering::Relaxed) == 0 {
                    self.found.first.store(self.count, Ordering::Relaxed);
                }
                (self.at, self.left, self.is_chunked) = (At::Headers, 0, false);
            }
            At::Headers if line.is_empty() => {
                self.at = match self.is_chunked {
                    true => At::Size,
                    false if self.left > 0 => At::Body,
                    false => At::Begin,
                };
            }
            At::Headers => match header(line) {
                Some((name, value)) if name.eq_ignore_ascii_case(b"content-length") => {
                    self.left = number(value, 10);
                }
                Some((name, _)) if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    self.is_chunked = true;
                }
                _ => {}
            },
            At::Size => {
                self.left = number(line, 16);
                self.at = if self.left > 0 { At::Chunk } else { At::Trailers };
            }
            At::Trailers if line.is_empty() => self.at = At::Begin,
            At::Trailers | At::Body | At::Chunk => {}
        }
    }
}

/// Whether there is a `#` behind the method.
fn has_fragment(line: &[u8]) -> bool {
    line.contains(&b'#') && line.iter().skip_while(|byte| **byte != b' ').any(|byte| *byte == b'#')
}

/// The name of a header, and its value.
fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// The number that a text begins with.
fn number(text: &[u8], radix: u32) -> u64 {
    let digits = text.iter().map_while(|byte| char::from(*byte).to_digit(radix));
    let more =
        |number: u64, digit| number.saturating_mul(radix.into()).saturating_add(u64::from(digit));
    digits.fold(0, more)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if read.is_ready() {
            self.heads.pass(&buf.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the first request with a fragment, however the bytes come.
    fn first(text: &str) -> u64 {
        let found: Vec<u64> = (1..=text.len().max(1))
            .map(|size| {
                let mut heads = Heads::default();
                text.as_bytes().chunks(size).for_each(|bytes| heads.pass(bytes));
                heads.found.first.load(Ordering::Relaxed)
            })
            .collect();
        assert!(found.iter().all(|number| *number == found[0]), "{text:?}: {found:?}");
        found[0]
    }

    #[test]
    fn a_fragment_is_found_in_targets_and_nowhere_else() {
        let none = [
            "",
            "GET / HTTP/1.1\r\nA: #\r\n\r\n",
            "G#T / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\nGET /# HTTP\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH:15\r\n\r\n\r\nGET /# HTTP\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nc;a=#\r\nGET /# HTTP\n\r\n0\r\nA: #\r\n\r\n",
        ];
        for text in none {
            assert_eq!(first(text), 0, "{text:?}");
            for end in ["\r\n", "\n"] {
                let more = format!("{text}\r\nPUT http://a/b?c#d HTTP/1.1{end}A: b{end}{end}");
                let begun = usize::from(!text.is_empty());
                assert_eq!(first(&more), 1 + begun as u64, "{more:?}");
            }
        }
        // Requests follow one another.
        let [one, two] = ["GET /a HTTP/1.1\r\n\r\n", "GET /a# HTTP/1.1\r\n\r\n"];
        assert_eq!(first(&[one, two, two, one].concat()), 2);
        assert_eq!(first("GET #a HTTP/1.1\n"), 1);
        let asks =
            |fragments: &Fragments| (0..3).map(|_| fragments.next().is_some()).collect::<Vec<_>>();
        let mut heads = Heads::default();
        heads.pass([one, two, one].concat().as_bytes());
        assert_eq!(asks(&heads.found), [false, true, false]);
    }
}
