//! Requests over HTTP to a running app: any bytes, or a path, headers and a body.
#![no_main]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use tidemill_core::{Column, DataType, StreamId, TableId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::{Addr, Env};
use tidemill_fuzz::Parts;
use tidemill_gateway::{Gateway, Plan};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};

struct Add {
    accounts: TableId,
    output: StreamId,
}

impl Opaque for Add {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [id, Value::Int(amount), ..] = event else { panic!("{event:?}") };
        // Few accounts, so that memory stays the same.
        let Value::Int(id) = id else { panic!("{id:?} is no int") };
        let id = Value::Int(id % 100);
        let row = tx.get(self.accounts, std::slice::from_ref(&id))?;
        let balance = match row.as_deref() {
            Some([_, Value::Int(balance)]) => balance.wrapping_add(*amount),
            _ => *amount,
        };
        if balance < 0 {
            return Err(Abort::refused("overdrawn"));
        }
        tx.put(self.accounts, &[id.clone(), Value::Int(balance)])?;
        tx.emit(self.output, &[id, Value::Int(balance)])
    }
}

struct App {
    env: Env,
    addr: Addr,
    _gateway: Gateway,
}

fn app() -> &'static App {
    static APP: OnceLock<App> = OnceLock::new();
    APP.get_or_init(|| {
        let mut b = Builder::new("bank");
        let ints = |names: [&str; 2]| names.map(|name| Column::new(name, DataType::Int)).to_vec();
        let accounts = b.table("accounts", &["id"], ints(["id", "balance"]));
        let mut parameters = ints(["id", "amount"]);
        parameters[1].default = Some(Value::Int(1));
        parameters.extend(tidemill_fuzz::every_type(true).columns.iter().cloned());
        let calls = b.calls("add.calls", parameters);
        let output = ints(["id", "balance"]);
        b.returning("add", calls, output, |output| Arc::new(Add { accounts, output }));
        let settings = Settings { http_port: Some(0), workers: 1, ..Settings::default() };
        let sources = vec![SourceDecl::pushed("add.calls")];
        let spec = AppSpec::new(b.finish().unwrap(), sources, settings.clone());
        let env = Env::real();
        let plan = Plan::of(&settings, &env).unwrap().unwrap();
        let mill = Arc::new(Mill::start(spec, env.clone()).unwrap());
        let gateway = Gateway::start(plan, mill, &env).unwrap();
        App { env, addr: Addr::Tcp(gateway.address()), _gateway: gateway }
    })
}

/// Sends a request. Returns the answer, or only its head where more may follow at any time.
fn answer(request: &[u8], ends: bool) -> Vec<u8> {
    let App { env, addr, .. } = app();
    let mut connection = env.net.connect(addr, 5_000_000).unwrap();
    connection.set_read_timeout(Some(20_000_000)).unwrap();
    // The gateway may have answered and closed before it has read all.
    let _ = connection.write_all(request);
    if ends {
        let _ = connection.shutdown(std::net::Shutdown::Write);
    }
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match connection.read(&mut piece) {
            Ok(0) => return answer,
            Ok(len) => answer.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("no answer"),
            Err(_) => return answer,
        }
        let text = String::from_utf8_lossy(&answer);
        let head = text.split_once("\r\n\r\n").map(|(head, _)| head);
        if head.is_some_and(|head| head.contains("text/event-stream")) {
            return answer;
        }
    }
}

/// Appends text of an address or a header, without characters that no client sends there.
fn put(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        match byte.is_ascii_graphic() {
            true => out.push(char::from(*byte)),
            false => write!(out, "%{byte:02X}").unwrap(),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let kind = parts.u8();
    let mut request = String::new();
    let body = match kind % 5 {
        0 => {
            let said = answer(parts.0, true);
            assert!(said.is_empty() || said.starts_with(b"HTTP/1."), "{}", said.escape_ascii());
            return;
        }
        1 => {
            request.push_str("POST /call/add");
            parts.0
        }
        2 => {
            request.push_str("GET /tables/accounts/rows?");
            put(parts.until(0), &mut request);
            parts.0
        }
        3 => {
            request.push_str(if kind & 128 == 0 { "GET /" } else { "POST /" });
            put(parts.until(0), &mut request);
            parts.0
        }
        _ => {
            request.push_str("GET /streams/add?");
            put(parts.until(0), &mut request);
            request.push_str(" HTTP/1.1\r\nLast-Event-ID: ");
            put(parts.until(0), &mut request);
            b""
        }
    };
    if !request.contains(" HTTP/1.1") {
        request.push_str(" HTTP/1.1");
    }
    request.push_str("\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json");
    if kind & 64 != 0 {
        request.push_str("\r\nIdempotency-Key: 1");
    }
    write!(request, "\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    let said = answer(&[request.as_bytes(), body].concat(), false);
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 "), "{request} gets {said}");
    assert!(!said.starts_with("HTTP/1.1 500"), "{request} gets {said}");
    let (head, body) = said.split_once("\r\n\r\n").expect("a whole head");
    if head.contains("application/json") {
        serde_json::from_str::<serde::de::IgnoredAny>(body).expect("it is JSON");
    }
});
