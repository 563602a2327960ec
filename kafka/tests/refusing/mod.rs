//! A schema registry that refuses every login.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_core::{Error, Kind};

/// A server that gives the same answer to all requests.
pub struct Refusing {
    address: String,
    asked: Arc<AtomicU64>,
}

impl Refusing {
    pub fn new(status: u16, body: &'static str) -> Refusing {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                count.fetch_add(1, Ordering::SeqCst);
                let length = body.len();
                let head = format!("HTTP/1.1 {status} No\r\nContent-Length: {length}\r\n");
                let _ =
                    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
            }
        });
        Refusing { address, asked }
    }

    /// Returns its address, with a name and a password.
    pub fn url(&self) -> Option<String> {
        Some(format!("http://me:hidden@{}", self.address))
    }

    /// Returns the number of requests so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Checks that the error quotes the registry, gives help, and contains no secret.
    pub fn assert_refused(&self, error: &Error, words: &str) {
        let Error { kind, what, help, .. } = error;
        assert_eq!(*kind, Kind::Io, "{error}");
        let at = &self.address;
        let wanted = format!("the schema registry at http://{at} refuses it: {words}");
        assert!(what.contains(&wanted), "{what}");
        for way in
            ["registry=\"http://user:password@host\"", "basic.auth.user.info", "bearer.auth.token"]
        {
            assert!(help.contains(way), "{help}");
        }
        assert!(!error.to_string().contains("hidden"), "{error}");
    }
}

/// Refusals of registries, and one of a proxy in front of them.
pub const REFUSALS: [(u16, &str, &str); 3] = [
    (401, r#"{"error_code": 401, "message": "Unauthorized"}"#, "Unauthorized (401)"),
    (
        403,
        r#"{"error_code": 40301, "message": "User me is not allowed"}"#,
        "User me is not allowed (403)",
    ),
    (403, "<html>\n Forbidden </html>", "<html> Forbidden </html> (403)"),
];
