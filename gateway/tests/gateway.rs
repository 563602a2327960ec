//! Tests of a running app and its clients, with real sockets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{json, Value as Json};
use tidemill_core::{Column, DataType, StreamId, TableId, Value};
use tidemill_engine::{AppSpec, Durable, Mill, Settings, SourceDecl};
use tidemill_env::{Addr, Connection, Env};
use tidemill_gateway::{digest, Gateway, Plan};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};

/// Adds to an account and returns the balance. An amount of 13 takes long.
struct Add {
    accounts: TableId,
    output: StreamId,
}

impl Opaque for Add {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [id, Value::Int(amount), _] = event else { panic!("{event:?}") };
        if *amount == 13 {
            Env::real().clock.sleep_us(400_000);
        }
        let row = tx.get(self.accounts, std::slice::from_ref(id))?;
        let balance = match row.as_deref() {
            Some([_, Value::Int(balance)]) => balance + amount,
            _ => *amount,
        };
        if balance < 0 {
            return Err(Abort::refused("overdrawn"));
        }
        match balance {
            0 => tx.delete(self.accounts, std::slice::from_ref(id))?,
            _ => tx.put(self.accounts, &[id.clone(), Value::Int(balance)])?,
        }
        tx.emit(self.output, &[id.clone(), Value::Int(balance)])
    }
}

fn spec(settings: Settings) -> AppSpec {
    let mut b = Builder::new("bank");
    let ints = |names: [&str; 2]| names.map(|name| Column::new(name, DataType::Int)).to_vec();
    let accounts = b.table("accounts", &["id"], ints(["id", "balance"]));
    let mut parameters = ints(["id", "amount"]);
    parameters[1].default = Some(Value::Int(1));
    parameters.push(Column::new("note", DataType::Str).nullable());
    let calls = b.calls("add.calls", parameters);
    let output = ints(["id", "balance"]);
    b.returning("add", calls, output, |output| Arc::new(Add { accounts, output }));
    // A declared procedure, which takes no request ids.
    let calls = b.calls("look.calls", vec![Column::new("id", DataType::Int)]);
    let mut h = b.handler("look", calls);
    let id = h.column("id");
    let row = h.row(accounts, &[id]);
    let there = h.exists(row);
    h.output(&[("reply", there)]);
    h.done();
    let sources = ["add.calls", "look.calls"].map(SourceDecl::pushed).to_vec();
    AppSpec::new(b.finish().unwrap(), sources, settings)
}

fn settings() -> Settings {
    Settings { http_port: Some(0), workers: 1, ..Settings::default() }
}

struct App {
    gateway: Gateway,
    mill: Arc<Mill>,
    addr: Addr,
}

impl App {
    fn start(settings: Settings) -> App {
        let env = Env::real();
        let plan = Plan::of(&settings, &env).unwrap().unwrap();
        let mill = Arc::new(Mill::start(spec(settings), env.clone()).unwrap());
        let gateway = Gateway::start(plan, mill.clone(), &env).unwrap();
        let addr = Addr::Tcp(gateway.address());
        App { gateway, mill, addr }
    }

    fn stop(self) {
        self.gateway.drain();
        self.mill.stop().unwrap();
        self.gateway.stop();
    }

    fn connect(&self) -> Box<dyn Connection> {
        connect(&self.addr)
    }

    /// Sends bytes, and reads the answer until the end.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut connection = self.connect();
        let _ = connection.write_all(bytes);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends one request with headers. Returns the status and the JSON.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Json) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        let answer = self.raw(request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, serde_json::from_str(body).unwrap_or_else(|_| Json::from(body)))
    }

    fn call(&self, procedure: &str, body: Json) -> (u16, Json) {
        self.ask("POST", &format!("/call/{procedure}"), "", &body.to_string())
    }

    fn request(&self, id: &str, procedure: &str, body: Json) -> (u16, Json) {
        let headers = format!("Idempotency-Key: {id}\r\n");
        self.ask("POST", &format!("/call/{procedure}"), &headers, &body.to_string())
    }

    fn get(&self, path: &str) -> (u16, Json) {
        self.ask("GET", path, "", "")
    }
}

fn connect(addr: &Addr) -> Box<dyn Connection> {
    let connection = Env::real().net.connect(addr, 5_000_000).unwrap();
    connection.set_read_timeout(Some(20_000_000)).unwrap();
    connection
}

fn what(said: &Json) -> String {
    format!("{} {}", said["error"]["what"], said["error"]["help"])
}

#[test]
fn a_call_is_answered() {
    let app = App::start(settings());
    let first = json!({"reply": {"id": 7, "balance": 5}});
    assert_eq!(app.call("add", json!({"id": 7, "amount": 5})), (200, first));
    assert_eq!(app.call("add", json!({"id": 7})).1["reply"]["balance"], 6);
    let refused = app.call("add", json!({"id": 7, "amount": -9, "note": null}));
    assert_eq!(refused, (409, json!({"aborted": "overdrawn"})));
    assert_eq!(app.call("look", json!({"id": 7})), (200, json!({"reply": true})));
    assert_eq!(app.get("/tables/accounts/rows?key=7").1["row"]["balance"], 6);
    assert_eq!(app.get("/tables/accounts/rows?key=8"), (200, json!({"row": null})));
    app.stop();
}

#[test]
fn what_is_wrong_is_said() {
    let app = App::start(settings());
    for (path, body, status, words) in [
        ("/call/ad", r#"{"id":1}"#, 404, "did you mean 'add'?"),
        ("/call/add", r#"{"id":"one"}"#, 400, "parameter 'id'"),
        ("/call/add", r#"{"id":1,"amout":2}"#, 400, "did you mean 'amount'?"),
        ("/call/add", r#"{"amount":2}"#, 400, "it is missing"),
        ("/call/add", r#"{"id":1,"id":2}"#, 400, "given twice"),
        ("/call/add", r#"{"id":null}"#, 400, "null"),
        ("/call/add", r#"{"id":1e40}"#, 400, "integer of 64 bits"),
        ("/call/add", r#"{"id":1} 2"#, 400, "trailing"),
        ("/call/add", "[1]", 400, "an object with the parameters"),
        ("/call/add", "{", 400, "not valid"),
        ("/call/add", "", 400, "not valid"),
        ("/call", "{}", 404, "/call/{procedure}"),
        ("/health", "{}", 405, "use GET for all else"),
    ] {
        let (found, said) = app.ask("POST", path, "", body);
        assert_eq!(found, status, "{path} {body}: {said}");
        assert!(what(&said).contains(words), "{path} {body}: {said}");
    }
    for (headers, status, words) in [
        ("Tidemill-Deadline-Ms: soon\r\n", 400, "milliseconds"),
        ("Idempotency-Key: \r\n", 400, "random"),
        ("Idempotency-Key: a\r\nIdempotency-Key: b\r\n", 400, "random"),
    ] {
        let (found, said) = app.ask("POST", "/call/add", headers, r#"{"id":1}"#);
        assert_eq!(found, status, "{headers}: {said}");
        assert!(what(&said).contains(words), "{headers}: {said}");
    }
    let (status, said) = app.request("a", "look", json!({"id": 1}));
    assert!(status == 400 && what(&said).contains("takes no request ids"), "{said}");
    for (path, words) in [
        ("/tables/acounts/rows?key=1", "did you mean 'accounts'?"),
        ("/tables/tidemill.requests/rows?key=1", "there is no table"),
        ("/tables/accounts/rows?limit=0", "give 1 to 1000"),
        ("/tables/accounts/rows?key=1&limit=2", "a page of rows"),
        ("/tables/accounts/rows?key=a", "key column 'id'"),
        ("/tables/accounts/rows?kee=a", "'kee'"),
        ("/streams/ad", "did you mean 'add'?"),
        ("/streams/add?from=-1", "?from=ROW"),
        ("/streams/add?from=5", "does not exist yet"),
    ] {
        let (status, said) = app.get(path);
        assert!(status == 400 || status == 404, "{path}: {status}");
        assert!(what(&said).contains(words), "{path}: {said}");
    }
    // Pages of foreign sites can send this without a preflight request.
    let text = "POST /call/add HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: text/plain\r\nContent-Length: 8\r\n\r\n{\"id\":1}";
    assert!(app.raw(text.as_bytes()).starts_with("HTTP/1.1 415"));
    let foreign = text.replace("localhost", "evil.example");
    assert!(app.raw(foreign.as_bytes()).starts_with("HTTP/1.1 403"));
    assert_eq!(app.get("/tables/accounts/rows?key=1").1["row"], Json::Null);
    app.stop();
}

#[test]
fn a_request_is_executed_once_also_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let settings = || Settings {
        data_dir: Some(folder.path().join("data")),
        durable: Durable::LogAndSnapshots,
        ..settings()
    };
    let add = || json!({"id": 7, "amount": 5});
    let app = App::start(settings());
    let first = app.request("first", "add", add());
    assert_eq!(first, (200, json!({"reply": {"id": 7, "balance": 5}})));
    assert_eq!(app.request("second", "add", add()).1["reply"]["balance"], 10);
    // Bodies with the same meaning are equal.
    let same = r#"{ "note": null, "amount": 5.0, "id": 7 }"#;
    assert_eq!(app.ask("POST", "/call/add", "Idempotency-Key: first\r\n", same), first);
    app.stop();
    let app = App::start(settings());
    assert_eq!(app.request("first", "add", add()), first);
    let (status, said) = app.request("first", "add", json!({"id": 7, "amount": 6}));
    assert!(status == 422 && what(&said).contains("that of another call"), "{said}");
    assert_eq!(app.get("/tables/accounts/rows?key=7").1["row"]["balance"], 10);
    app.stop();
}

#[test]
fn who_waits_too_long_may_ask_again() {
    let app = App::start(settings());
    let headers = "Idempotency-Key: slow\r\nTidemill-Deadline-Ms: 50\r\n";
    let slow = r#"{"id":1,"amount":13}"#;
    let (status, said) = app.ask("POST", "/call/add", headers, slow);
    assert_eq!((status, &said["executed"]), (504, &json!("unknown")), "{said}");
    assert!(what(&said).contains("same Idempotency-Key"), "{said}");
    let (status, said) = app.ask("POST", "/call/add", "Idempotency-Key: slow\r\n", slow);
    assert_eq!((status, &said["reply"]["balance"]), (200, &json!(13)));
    app.stop();
}

/// The call of a client that has left is executed.
#[test]
fn a_client_that_leaves_does_not_take_its_call_along() {
    let app = App::start(settings());
    let body = r#"{"id":3,"amount":13}"#;
    let mut connection = app.connect();
    let request = format!(
        "POST /call/add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).unwrap();
    while app.mill.sent("add.calls").unwrap() == 0 {
        Env::real().clock.sleep_us(1000);
    }
    drop(connection);
    app.mill.drain().unwrap();
    assert_eq!(app.get("/tables/accounts/rows?key=3").1["row"]["balance"], 13);
    app.stop();
}

#[test]
fn there_is_room_for_so_many() {
    let app = App::start(Settings { http_calls_max: 1, http_connections_max: 3, ..settings() });
    let headers = "Tidemill-Deadline-Ms: 20\r\n";
    let slow = r#"{"id":1,"amount":13}"#;
    assert_eq!(app.ask("POST", "/call/add", headers, slow).0, 504);
    // The call is still being executed, though no client waits.
    let answer = app.raw(
        b"POST /call/add HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
          Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"id\":1}",
    );
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    app.mill.drain().unwrap();
    // An allowed client retains its connection.
    let held: Vec<_> = (0..3).map(|_| asks_on(&app, "/nothing", "")).collect();
    let (status, said) = app.call("add", json!({"id": 1}));
    assert_eq!(status, 503, "{said}");
    assert!(what(&said).contains("http_connections_max"), "{said}");
    assert_eq!(app.get("/health").0, 200);
    drop(held);
    while app.get("/nothing").0 == 503 {}
    assert_eq!(app.call("add", json!({"id": 1})).1["reply"]["balance"], 14);
    app.stop();
}

/// Returns an open connection on which one request has been answered.
fn asks_on(app: &App, path: &str, headers: &str) -> Box<dyn Connection> {
    let mut connection = app.connect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut buffer = [0; 1 << 12];
    assert!(connection.read(&mut buffer).unwrap() > 0);
    assert!(!String::from_utf8_lossy(&buffer).contains("connection: close"));
    connection
}

fn guarded(folder: &std::path::Path, settings: Settings) -> App {
    let tokens = folder.join("tokens.toml");
    let entry = |name: &str, roles: &str| {
        let hash = digest(&format!("{name}-secret"));
        format!("[{name}]\nsha256 = \"{hash}\"\nroles = [{roles}]\n")
    };
    write(
        &tokens,
        &[entry("ann", "\"teller\""), entry("bob", ""), entry("eve", "\"clerk\"")].concat(),
    );
    App::start(Settings { http_tokens: Some(tokens), ..settings })
}

const ANN: &str = "Authorization: Bearer ann-secret\r\n";
const BOB: &str = "Authorization: Bearer bob-secret\r\n";
const EVE: &str = "Authorization: Bearer eve-secret\r\n";

/// Clients without a token can't keep out those who have one, nor hide the app's health.
#[test]
fn strangers_take_no_place_of_those_who_are_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let app = guarded(folder.path(), Settings { http_connections_max: 8, ..settings() });
    let kept = asks_on(&app, "/metrics", ANN);
    let slow = |n: usize| {
        let mut connection = app.connect();
        // Nothing, a part of a head, a question about the health, and a request without a token.
        let text: &[u8] = match n % 4 {
            0 => b"",
            1 => b"GET /tables/accounts/rows?key=1 HTTP/1.1\r\nHost: local",
            2 => b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
            _ => b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        let _ = connection.write_all(text);
        connection
    };
    let held: Vec<_> = (0..200).map(slow).collect();
    for _ in 0..7 {
        assert_eq!(app.get("/health").0, 200);
        assert_eq!(app.ask("POST", "/call/add", BOB, r#"{"id":1}"#).0, 200);
    }
    let (_, metrics) = app.ask("GET", "/metrics", ANN, "");
    let metrics = metrics.as_str().unwrap().to_owned();
    let connections = metrics.lines().find(|l| l.starts_with("tidemill_http_connections "));
    let connections: u32 = connections.unwrap().split(' ').next_back().unwrap().parse().unwrap();
    assert!(connections <= 8 + 16 + 1, "{connections}");
    // A client that was allowed before retains its place.
    drop((kept, held));
    app.stop();
}

/// Without a token, a connection ends after one answer.
#[test]
fn who_has_no_token_loses_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let app = guarded(folder.path(), settings());
    let answer = app.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").to_lowercase();
    assert!(answer.starts_with("http/1.1 401") && answer.contains("connection: close"), "{answer}");
    // A client can ask for the health again and again.
    let _ = asks_on(&app, "/health", "");
    app.stop();
}

/// The outputs of procedures need the roles of the procedures.
#[test]
fn outputs_need_the_roles_of_procedures() {
    let folder = tempfile::tempdir().unwrap();
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(what, role)| (what.to_string(), role.to_string())).collect()
    };
    let start = |roles: &[(&str, &str)]| {
        let http_roles_default =
            map(&[("tables/accounts", "teller"), ("streams/nothing", "teller")]);
        let settings = Settings { http_roles: map(roles), http_roles_default, ..settings() };
        guarded(folder.path(), settings)
    };
    let paths = [
        "/streams/add?from=9",
        "/streams/add.aborted?from=9",
        "/streams/add.calls.dead?from=9",
        "/tables/accounts/rows?key=1",
    ];
    let told = |app: &App, headers: &str| paths.map(|path| app.ask("GET", path, headers, "").0);
    let app = start(&[("add", "teller")]);
    // These rows do not exist yet, but she may ask for them.
    assert_eq!(told(&app, ANN), [400, 400, 400, 200]);
    for who in [BOB, EVE] {
        assert_eq!(told(&app, who), [403; 4]);
        assert_eq!(app.ask("GET", "/tables/accounts/changes", who, "").0, 403);
        assert_eq!(app.ask("POST", "/call/add", who, r#"{"id":1}"#).0, 403);
        assert_eq!(app.ask("POST", "/call/look", who, r#"{"id":1}"#).0, 200);
    }
    app.stop();
    let app = start(&[
        ("add", "teller|clerk"),
        ("streams/add.aborted", "boss"),
        ("tables/accounts", "*"),
    ]);
    for (who, is_one) in [(ANN, true), (EVE, true), (BOB, false)] {
        let of = if is_one { 400 } else { 403 };
        assert_eq!(told(&app, who), [of, 403, of, 200]);
    }
    let (_, document) = app.ask("GET", "/openapi.json", BOB, "");
    assert_eq!(document["paths"]["/streams/add"]["get"]["x-role"], "teller or clerk");
    assert_eq!(document["paths"]["/tables/accounts/rows"]["get"]["x-role"], Json::Null);
    app.stop();
}

/// Ambiguous requests and bodies that are not JSON are refused.
#[test]
fn requests_have_one_meaning() {
    let app = App::start(settings());
    let post = |headers: &str, body: &str| {
        let length = body.len();
        app.raw(
            format!(
                "POST /call/add HTTP/1.1\r\n{headers}Connection: close\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    };
    let (host, json) = ("Host: localhost\r\n", "Content-Type: application/json\r\n");
    let both = format!("{host}{json}");
    let with = |more: &str| format!("{both}{more}");
    let one = r#"{"id":1}"#;
    for (headers, status, words) in [
        (json.to_owned(), 400, "no header Host"),
        (with(host), 400, "two headers Host"),
        (format!("Host:\r\n{json}"), 400, "not a name or address"),
        (format!("Host: me@localhost\r\n{json}"), 400, "not a name or address"),
        (format!("Host: a b\r\n{json}"), 400, "not a name or address"),
        (with(json), 400, "two headers content-type"),
        (with("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400, "authorization"),
        (with("Tidemill-Deadline-Ms: 9\r\nTidemill-Deadline-Ms: 8\r\n"), 400, "deadline"),
        (with("Tidemill-Deadline-Ms: 99999999999999999999\r\n"), 400, "positive number"),
        (with("Idempotency-Key: a\r\nIdempotency-Key: a\r\n"), 400, "not one text"),
        (with("Content-Encoding: gzip\r\n"), 415, "encoded as 'gzip'"),
        (with("Content-Length: 3\r\n"), 400, ""),
        (
            format!("{host}Content-Type: application/json; charset=utf-16\r\n"),
            415,
            "charset 'utf-16'",
        ),
        (with(&format!("X: {}\r\n", "x".repeat(20_000))), 431, ""),
    ] {
        let answer = post(&headers, one);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
        assert!(answer.contains(words), "{headers}: {answer}");
    }
    for headers in [
        both.clone(),
        format!("{host}Content-Type: application/json; charset=\"UTF-8\"\r\n"),
        with("Content-Encoding: identity\r\n"),
        format!("Host: LOCALHOST:1\r\n{json}"),
        format!("Host: [::1]:80\r\n{json}"),
    ] {
        assert!(post(&headers, one).starts_with("HTTP/1.1 200"), "{headers}");
    }
    let deep = format!(r#"{{"id":{}1{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    for body in [
        r#"{"id":1,"id":2}"#,
        r#"{"id":1,"\u0069d":2}"#,
        r#"{"id":NaN}"#,
        r#"{"id":1e400}"#,
        r#"{"id":9223372036854775808}"#,
        r#"{"id":1,"note":"\ud800"}"#,
        r#"{"id":1} {"id":2}"#,
        "\u{feff}{\"id\":1}",
        &deep,
    ] {
        let answer = post(&both, body);
        assert!(answer.starts_with("HTTP/1.1 400"), "{body}: {answer}");
    }
    for (target, status) in [
        ("/tables/accounts/rows?key=%ff", 400),
        ("/tables/accounts/rows?key=%zz", 400),
        ("/tables/accounts/rows?key=1%00", 400),
        ("/tables/%ff/rows?key=1", 400),
        ("/streams/add?from=1&from=1", 400),
        ("/tables/accounts/rows?key=1&key=2", 200),
        ("/tables/accounts/rows?after=1&after=2", 400),
        ("/tables/accounts%2Frows?key=1", 404),
        ("/tables/a%2Fb/rows?key=1", 404),
        ("/tables/../health", 404),
        ("http://localhost/health", 200),
        ("http://evil.example/health", 400),
        ("/tables/accounts/rows?key=%31", 200),
    ] {
        let (found, said) = app.get(target);
        assert_eq!(found, status, "{target}: {said}");
    }
    // Only the old version of HTTP allows a request without the header Host.
    assert!(app.raw(b"GET /health HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200"));
    app.stop();
}

/// Ports are checked for known clients, too.
#[test]
fn hosts_have_ports_that_there_are() {
    let app = App::start(settings());
    let known = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let call = "POST /call/add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 19\r\n\r\n{\"id\":1,\"note\":\"#\"}";
    // This request makes no client known.
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\nNote: #\r\n\r\n";
    for before in ["", known, health, call] {
        let begun = usize::from(!before.is_empty());
        let ask = |target: &str, host: &str| {
            let head = "Connection: close\r\n\r\n";
            app.raw(format!("{before}GET {target} HTTP/1.1\r\nHost: {host}\r\n{head}").as_bytes())
        };
        for (target, host, words) in [
            ("/metrics", "localhost:abc", "not a name or address"),
            ("/metrics", "localhost:65536", "not a name or address"),
            ("/metrics", "localhost:99999", "not a name or address"),
            ("/metrics", "localhost:+80", "not a name or address"),
            ("/metrics", "[::1]:99999", "not a name or address"),
            ("http://localhost:abc/metrics", "localhost:abc", "not a name or address"),
        ] {
            let answer = ask(target, host);
            assert_eq!(answer.matches("HTTP/1.1 ").count(), begun + 1, "{answer}");
            assert_eq!(answer.matches("HTTP/1.1 400 ").count(), 1, "{before}{target}: {answer}");
            assert!(answer.contains(words), "{before}{target} {host}: {answer}");
        }
        for host in ["localhost", "localhost:", "localhost:65535", "[::1]", "[::1]:0"] {
            let answer = ask("/metrics", host);
            assert_eq!(answer.matches("HTTP/1.1 200 ").count(), begun + 1, "{host}: {answer}");
        }
    }
    app.stop();
}

/// After a refusal that came before the body was read, the connection can be used again. Otherwise
/// the answer says that it is closed.
#[test]
fn an_early_refusal_leaves_the_connection_or_says_so() {
    let app =
        App::start(Settings { http_idle_us: 300_000, http_body_bytes_max: 1000, ..settings() });
    let head = |headers: &str| {
        format!("POST /call/add HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes()
    };
    let answer = |connection: &mut dyn Connection| {
        let mut answer = Vec::new();
        let mut buffer = [0; 1 << 10];
        while !answer.ends_with(b"}") {
            match connection.read(&mut buffer).unwrap() {
                0 => break,
                read => answer.extend_from_slice(&buffer[..read]),
            }
        }
        String::from_utf8(answer).unwrap().to_lowercase()
    };
    for (headers, body) in [
        ("Content-Length: 9\r\n", "{\"id\": 1}"),
        ("Transfer-Encoding: chunked\r\n", "9\r\n{\"id\": 1}\r\n0\r\n\r\n"),
    ] {
        let mut connection = app.connect();
        for _ in 0..2 {
            // The body is on its way when the request is refused for its missing content type.
            connection.write_all(&head(headers)).unwrap();
            Env::real().clock.sleep_us(50_000);
            connection.write_all(body.as_bytes()).unwrap();
            let answer = answer(&mut *connection);
            assert!(answer.starts_with("http/1.1 415"), "{answer}");
            assert!(!answer.contains("connection: close"), "{answer}");
        }
    }
    for headers in [
        "Content-Length: 9\r\n",
        "Content-Length: 9\r\nExpect: 100-continue\r\n",
        "Content-Length: 1001\r\n",
        "Transfer-Encoding: chunked\r\n",
    ] {
        // A body that never arrives, or is too long to be read and discarded.
        let mut connection = app.connect();
        connection.write_all(&head(headers)).unwrap();
        let answer = answer(&mut *connection);
        assert!(answer.starts_with("http/1.1 415"), "{headers}: {answer}");
        assert!(answer.contains("connection: close"), "{headers}: {answer}");
        assert_eq!(connection.read(&mut [0; 10]).unwrap(), 0);
    }
    app.stop();
}

/// No request ends the server or blocks it for ever.
#[test]
fn garbage_and_silence_harm_nobody() {
    let app =
        App::start(Settings { http_idle_us: 300_000, http_body_bytes_max: 1000, ..settings() });
    let long = vec![b'a'; 100_000];
    let head = b"POST /call/add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let deep = "[".repeat(900);
    let deep = format!("Content-Length: {}\r\n\r\n{{\"id\":{deep}", deep.len() + 6);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"\xff\xfe\x00\r\n\r\n".to_vec(), "HTTP/1.1 400"),
        (b"GET /health\r\n\r\n".to_vec(), "HTTP/1.1 400"),
        ([b"GET /health HTTP/1.1\r\nX: ", &long[..], b"\r\n\r\n"].concat(), "HTTP/1.1 431"),
        ([b"GET /", &long[..], b" HTTP/1.1\r\n\r\n"].concat(), "HTTP/1.1 4"),
        ([&head[..], b"Content-Length: 1001\r\n\r\n"].concat(), "HTTP/1.1 413"),
        ([&head[..], b"Content-Length: 99999999999999999999\r\n\r\n"].concat(), "HTTP/1.1 400"),
        (
            [&head[..], b"Transfer-Encoding: chunked\r\n\r\n400\r\n", &long[..1024], b"\r\n"]
                .concat(),
            "HTTP/1.1 413",
        ),
        ([&head[..], b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"].concat(), "HTTP/1.1 400"),
        ([&head[..], b"Content-Length: 8\r\n\r\n{\"id\""].concat(), "HTTP/1.1 408"),
        ([&head[..], deep.as_bytes()].concat(), "HTTP/1.1 400"),
        (b"GET /health HT".to_vec(), ""),
        (Vec::new(), ""),
    ];
    for (bytes, answer) in cases {
        let found = app.raw(&bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert!(found.starts_with(answer), "{shown}: {found}");
    }
    // Half of a request, and then the client is gone.
    for cut in (1..head.len()).step_by(7) {
        drop(app.connect().write_all(&head[..cut]));
    }
    // A client that asks for much and reads nothing.
    let mut greedy = app.connect();
    for _ in 0..20_000 {
        if greedy.write_all(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n").is_err() {
            break;
        }
    }
    assert_eq!(app.get("/health").0, 200);
    assert_eq!(app.call("add", json!({"id": 1})).0, 200);
    let (_, metrics) = app.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("tidemill_http_calls_total 1\n"), "{metrics}");
    assert!(metrics.contains("tidemill_transactions_total 1\n"), "{metrics}");
    app.stop();
}

/// Reads the head of an answer, and then events up to a number.
struct Sent {
    connection: Box<dyn Connection>,
    text: String,
}

impl Sent {
    fn open(app: &App, path: &str, headers: &str) -> Sent {
        let mut connection = app.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        Sent { connection, text: String::new() }
    }

    /// Returns the next event with data: its name, id and data.
    fn next(&mut self) -> (String, String, Json) {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                let field = |name: &str| {
                    let of = |line: &str| {
                        line.trim_end().strip_prefix(&format!("{name}: ")).map(str::to_owned)
                    };
                    event.lines().find_map(of)
                };
                if let Some(data) = field("data") {
                    let data = serde_json::from_str(&data).unwrap();
                    let [name, id] = ["event", "id"].map(|name| field(name).unwrap_or_default());
                    return (name, id, data);
                }
            }
            let mut bytes = [0; 4096];
            let read = self.connection.read(&mut bytes).unwrap();
            assert!(read > 0, "it has ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}

#[test]
fn a_stream_is_followed_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        || Settings { data_dir: Some(folder.path().join("data")), tail_rows: 5, ..settings() };
    let app = App::start(settings());
    let mut all = Sent::open(&app, "/streams/add?from=0", "");
    for n in 0..4 {
        app.call("add", json!({"id": 1}));
        let event = json!({"id": 1, "balance": n + 1});
        assert_eq!(all.next(), (String::new(), n.to_string(), event));
    }
    let mut rest = Sent::open(&app, "/streams/add", "Last-Event-ID: 1\r\n");
    assert_eq!(rest.next().1, "2");
    let mut refused = Sent::open(&app, "/streams/add.aborted", "");
    app.call("add", json!({"id": 1, "amount": -9}));
    let (_, id, event) = refused.next();
    assert_eq!(id, "0");
    assert_eq!(event, json!({"id": 1, "amount": -9, "note": null, "reason": "overdrawn"}));
    app.gateway.drain();
    app.mill.stop().unwrap();
    assert_eq!(all.next().0, "end");
    app.gateway.stop();
    let app = App::start(settings());
    let mut next = Sent::open(&app, "/streams/add", "Last-Event-ID: 3\r\n");
    for _ in 0..8 {
        app.call("add", json!({"id": 1}));
    }
    assert_eq!(next.next().1, "4");
    let (status, said) = app.get("/streams/add?from=2");
    assert_eq!((status, &said["first"], &said["next"]), (410, &json!(7), &json!(12)), "{said}");
    app.stop();
}

#[test]
fn changes_of_a_table_are_followed() {
    let app = App::start(Settings { tail_rows: 6, ..settings() });
    app.call("add", json!({"id": 1}));
    let mut changes = Sent::open(&app, "/tables/accounts/changes", "");
    let (name, first, _) = changes.next();
    assert_eq!(name, "reset");
    app.call("add", json!({"id": 1, "amount": 4}));
    app.call("add", json!({"id": 1, "amount": -5}));
    let mut told = Vec::new();
    let mut ids = vec![first.clone()];
    while told.len() < 2 {
        let (name, id, data) = changes.next();
        match &*name {
            // Calls that were executed before the client followed the table.
            "reset" => {}
            _ => told.push(data["changes"].clone()),
        }
        ids.push(id);
    }
    let row = json!({"id": 1, "balance": 5});
    assert_eq!(told[0], json!([{"key": [1], "row": row}]));
    assert_eq!(told[1], json!([{"key": [1], "row": null}]));
    let again = |id: &str| {
        let headers = format!("Last-Event-ID: {id}\r\n");
        Sent::open(&app, "/tables/accounts/changes", &headers).next()
    };
    let before = &ids[ids.len() - 2];
    let (name, id, data) = again(before);
    assert_eq!((&*name, &id, &data["changes"]), ("", ids.last().unwrap(), &told[1]));
    for n in 0..7 {
        app.call("add", json!({"id": n}));
    }
    // The client was away for too long, or has the id of another run.
    assert_eq!(again(before).0, "reset");
    assert_eq!(again("0000000000000000.3").0, "reset");
    app.stop();
}

#[test]
fn clients_have_roles() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.toml");
    let entry = |name: &str, token: &str, roles: &str| {
        format!("[{name}]\nsha256 = \"{}\"\nroles = [{roles}]\n", digest(token))
    };
    let text = entry("ann", "a-secret", "\"teller\"") + &entry("bob", "b-secret", "");
    write(&tokens, &text);
    let roles = BTreeMap::from([("add".to_owned(), "teller".to_owned())]);
    let guarded = Settings { http_tokens: Some(tokens.clone()), http_roles: roles, ..settings() };
    let app = App::start(guarded.clone());
    let call = |token: &str, id: &str| {
        let headers = format!("Authorization: Bearer {token}\r\nIdempotency-Key: {id}\r\n");
        app.ask("POST", "/call/add", &headers, r#"{"id":1}"#)
    };
    assert_eq!(call("a-secret", "x").0, 200);
    assert_eq!(call("b-secret", "x").0, 403);
    assert_eq!(call("c-secret", "x").0, 401);
    assert_eq!(call("", "x").0, 401);
    assert_eq!(app.get("/openapi.json").0, 401);
    assert_eq!(app.get("/nothing").0, 401);
    assert_eq!(app.get("/health").0, 200);
    let bob = "Authorization: bearer b-secret\r\n";
    assert_eq!(app.ask("POST", "/call/look", bob, r#"{"id":1}"#).0, 200);
    let (status, document) = app.ask("GET", "/openapi.json", bob, "");
    assert_eq!(status, 200);
    assert_eq!(document["paths"]["/call/add"]["post"]["x-role"], "teller");
    app.stop();
    let refused = |settings: Settings| match Plan::of(&settings, &Env::real()) {
        Ok(_) => panic!("it was planned"),
        Err(error) => error.to_string(),
    };
    assert!(refused(Settings { http_tokens: None, ..guarded.clone() }).contains("no tokens"));
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let open = Settings { http_host: host.into(), ..guarded.clone() };
        assert!(refused(open).contains("needs tokens and a certificate"));
    }
    assert!(refused(Settings { http_host: "here".into(), ..settings() }).contains("not an address"));
    write(&tokens, "[ann]\nsha256 = \"12\"\n");
    assert!(refused(guarded.clone()).contains("64 hexadecimal digits"));
    write(&tokens, "[ann]\ntoken = \"12\"\n");
    assert!(refused(guarded).contains("unknown field"));
}

fn write(path: &std::path::Path, text: &str) {
    let mut file = Env::real().disk.create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn ids_are_each_clients_own() {
    let folder = tempfile::tempdir().unwrap();
    let app = guarded(folder.path(), settings());
    let add = |who: &str| {
        let headers = format!("{who}Idempotency-Key: same\r\n");
        let (status, said) = app.ask("POST", "/call/add", &headers, r#"{"id":1}"#);
        assert_eq!(status, 200, "{said}");
        said["reply"]["balance"].clone()
    };
    assert_eq!([ANN, BOB, ANN, BOB].map(add), [1, 2, 1, 2].map(Json::from));
    app.stop();
}

#[test]
fn the_document_describes_what_there_is() {
    let app = App::start(settings());
    let (status, document) = app.get("/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let body = &document["paths"]["/call/add"]["post"]["requestBody"];
    let body = &body["content"]["application/json"]["schema"];
    assert_eq!(body["required"], json!(["id"]));
    assert_eq!(body["properties"]["amount"]["default"], 1);
    assert_eq!(body["properties"]["note"]["anyOf"][1], json!({"type": "null"}));
    for path in ["/streams/add", "/streams/add.aborted", "/tables/accounts/changes", "/health"] {
        assert!(document["paths"][path]["get"].is_object(), "{path}");
    }
    assert!(!document.to_string().contains("tidemill.requests"));
    app.stop();
}

#[test]
fn a_taken_port_is_refused_before_anything_runs() {
    let taken = Env::real().net.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().tcp().unwrap().port();
    let settings = Settings { http_port: Some(port), ..settings() };
    let error = Plan::of(&settings, &Env::real()).err().unwrap();
    assert!(error.what.contains(&format!("listening on 127.0.0.1:{port}")), "{error}");
    assert!(error.help.contains("http_port"), "{error}");
}

#[test]
fn the_end_is_told() {
    let app = App::start(settings());
    let addr: SocketAddr = app.gateway.address();
    let mut idle = app.connect();
    let body = r#"{"id":1,"amount":13}"#;
    let mut waiting = app.connect();
    let request = format!(
        "POST /call/add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    waiting.write_all(request.as_bytes()).unwrap();
    while app.mill.sent("add.calls").unwrap() == 0 {
        Env::real().clock.sleep_us(1000);
    }
    app.stop();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(idle.read(&mut [0; 10]).unwrap(), 0);
    assert!(Env::real().net.connect(&Addr::Tcp(addr), 1_000_000).is_err());
}
