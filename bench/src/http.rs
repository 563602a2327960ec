//! Calls over HTTP: clients call a procedure, and each waits for the reply before its next call.
//!
//! Each call adds an amount to an account and returns the new balance. Some threads share the
//! connections. A thread writes a request on each of its connections, and then reads the replies.
//! So the number of calls in flight is that of the connections, and the client costs little. It
//! shares the machine with the app. With `--beside`, a stream is sent at the same time, at that
//! share of the rate that the app takes without calls.
//!
//! The invariant: every reply says that the call was executed, and every balance equals that of an
//! array in which the same amounts were added up.
//!
//! With `--serve`, external clients call the address that is shown for this many seconds, and each
//! adds 1 to some account. Then the sum of all balances must be the number of executed calls.

mod wages;

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tidemill_core::{Column, DataType, Error, Result, StreamId, TableId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::{Addr, Connection, Env};
use tidemill_gateway::{Gateway, Plan};
use tidemill_txn::program::{Abort, Builder, ExprId, HandlerBuilder, Opaque, Tx};
use tidemill_txn::Program;

use crate::args::{Args, Durable, ProgramKind};
use crate::measure::median;
use crate::push::latency;
use crate::report::{Measured, Report};
use crate::rng::Rng;
use crate::zipf::Zipf;
use crate::Given;

/// The default numbers of calls and connections.
const CALLS: usize = 200_000;
const CONNECTIONS: usize = 64;
/// The number of client threads.
const CLIENTS: usize = 2;
/// The longest time for external clients, in seconds.
const SERVE_MAX: f64 = 86_400.0;
/// The share of the calls, the first ones, whose latency does not count.
const WARM_UP: f64 = 0.1;
/// The timeout of a new connection, in microseconds.
const CONNECT_US: u64 = 5_000_000;

/// The procedure that adds to an account.
struct Deposit {
    accounts: TableId,
    output: StreamId,
}

impl Opaque for Deposit {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let balance = added(tx, self.accounts, event)?;
        tx.emit(self.output, &[Value::Int(balance)])
    }
}

/// Adds the event's amount to its account; returns the new balance.
fn added(tx: &mut dyn Tx, accounts: TableId, event: &[Value]) -> Result<i64, Abort> {
    let row = tx.get(accounts, &event[..1])?;
    let before = match row.as_deref() {
        Some([_, Value::Int(sum)]) => *sum,
        _ => 0,
    };
    let [account, Value::Int(amount)] = event else {
        return Err(Abort::refused("an amount is an integer"));
    };
    let sum = before.checked_add(*amount).ok_or_else(|| Abort::refused("overflow"))?;
    tx.put(accounts, &[account.clone(), Value::Int(sum)])?;
    Ok(sum)
}

/// Adds the event's amount, in a traced program.
fn traced_added(h: &mut HandlerBuilder<'_>, accounts: TableId, column: &str) -> ExprId {
    let (account, amount) = (h.column("account"), h.column("amount"));
    let row = h.row(accounts, &[account]);
    let sum = h.read(row, column);
    let sum = h.add(sum, amount);
    h.set(row, column, sum);
    sum
}

fn program(kind: ProgramKind, has_wages: bool) -> Result<Program> {
    let mut b = Builder::new("http");
    let balance = Column::new("balance", DataType::Int).default(Value::Int(0));
    let accounts = b.table("accounts", &["id"], vec![Column::new("id", DataType::Int), balance]);
    let parameters = ["account", "amount"].map(|name| Column::new(name, DataType::Int));
    let calls = b.calls("deposit.calls", parameters.to_vec());
    match kind {
        ProgramKind::Rust => {
            let reply = vec![Column::new("balance", DataType::Int)];
            b.returning("deposit", calls, reply, |output| Arc::new(Deposit { accounts, output }));
        }
        ProgramKind::Traced => {
            let mut h = b.handler("deposit", calls);
            let balance = traced_added(&mut h, accounts, "balance");
            h.output(&[("balance", balance)]);
            h.done();
        }
        ProgramKind::Python => {
            return Err(Error::setting("--program python: http has no such program")
                .help("use --program rust or traced; a client in Python would dominate the time"));
        }
    }
    if has_wages {
        wages::add(&mut b, kind);
    }
    b.finish()
}

/// Runs the workload.
pub(crate) fn run(args: &Args, _: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let program = program(args.program, args.beside.is_some())?;
    if args.requests && args.program != ProgramKind::Rust {
        return Err(Error::setting("--requests: only functions take request ids")
            .help("use --program rust"));
    }
    if let Some(seconds) = args.serve {
        return serve(args, &env, &program, seconds, progress);
    }
    let calls = Calls::of(args);
    let mut measured = Measured::new(calls.count(), "nothing durable");
    let (mut waits, mut beside) = (Vec::new(), Vec::new());
    for repeat in 1..=args.repeat {
        let mut once = |durable: Durable, waits: &mut Vec<u64>| -> Result<f64> {
            let ended = run_once(args, &env, &program, &calls, durable)?;
            measured.valid &= ended.valid;
            measured.state_hash = ended.state_hash;
            waits.extend(ended.waits_ns);
            if durable == args.durable() {
                beside.extend(ended.wages_per_s);
            }
            Ok(calls.count() as f64 / ended.seconds)
        };
        let (bare, rate) =
            (once(Durable::None, &mut Vec::new())?, once(args.durable(), &mut waits)?);
        measured.baseline_rates.push(bare);
        measured.rates.push(rate);
        progress(&format!(
            "run {repeat} of {}: {rate:.0} calls a second, and {bare:.0} without a log",
            args.repeat
        ));
    }
    measured.latency_ms = Some(latency(&mut waits));
    measured.details.insert("connections".into(), json!(calls.connections()));
    measured.details.insert("requests".into(), json!(args.requests));
    if !beside.is_empty() {
        measured.details.insert("beside_per_s".into(), json!(median(&beside)));
    }
    Ok(Report::of(args, measured))
}

/// The requests by client and round, one for each of its connections.
struct Calls {
    clients: Vec<Vec<Vec<Vec<u8>>>>,
    balances: Vec<Option<i64>>,
}

impl Calls {
    fn of(args: &Args) -> Calls {
        let connections = args.connections.unwrap_or(CONNECTIONS);
        let clients = connections.min(CLIENTS);
        let share =
            |client: usize| connections / clients + usize::from(client < connections % clients);
        let rounds = args.events.unwrap_or(CALLS).div_ceil(connections);
        let mut rng = Rng::new(args.seed);
        let accounts = Zipf::new(args.keys, args.skew, rng.next_u64());
        let mut balances = vec![None; args.keys];
        let mut call = || {
            let account = accounts.draw(&mut rng);
            let amount = 1 + rng.below(100) as i64;
            *balances[account as usize].get_or_insert(0) += amount;
            let id = match args.requests {
                true => format!("Idempotency-Key: {:016x}\r\n", rng.next_u64()),
                false => String::new(),
            };
            let body = format!("{{\"account\":{account},\"amount\":{amount}}}");
            format!(
                "POST /call/deposit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 {id}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        };
        let clients = (0..clients)
            .map(|client| {
                (0..rounds).map(|_| (0..share(client)).map(|_| call()).collect()).collect()
            })
            .collect();
        Calls { clients, balances }
    }

    fn connections(&self) -> usize {
        self.clients.iter().map(|rounds: &Vec<Vec<Vec<u8>>>| rounds[0].len()).sum()
    }

    fn count(&self) -> usize {
        self.clients.iter().flatten().map(Vec::len).sum()
    }
}

/// Answers external clients for some seconds.
fn serve(
    args: &Args,
    env: &Env,
    program: &Program,
    seconds: f64,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    if !(seconds > 0.0 && seconds <= SERVE_MAX) {
        return Err(Error::setting(format!("--serve {seconds}"))
            .help(format!("give seconds above 0, up to {SERVE_MAX}")));
    }
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let app = App::start(args, env, program, connections, args.durable())?;
    progress(&format!(
        "POST http://{}/call/deposit {{\"account\": 0..{}, \"amount\": 1}} for {seconds} s",
        app.gateway.address(),
        args.keys
    ));
    let payer = app.payer(args, env)?;
    let begun = env.clock.monotonic_ns();
    env.clock.sleep_us((seconds * 1e6) as u64);
    let took = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    let wages = payer.map_or(Ok(0), wages::Payer::end)?;
    let stopped = app.stop(args, wages)?;
    let calls = stopped.committed - wages;
    let mut measured = Measured::new(calls as usize, "nothing");
    let sum: i64 = stopped.balances.iter().flatten().sum();
    measured.valid = stopped.were_paid && sum == calls as i64;
    measured.state_hash = stopped.state_hash;
    measured.rates.push(calls as f64 / took);
    measured.baseline_rates.push(f64::NAN);
    measured.details.insert("client".into(), json!("others"));
    if args.beside.is_some() {
        measured.details.insert("beside_per_s".into(), json!(wages as f64 / took));
    }
    Ok(Report::of(args, measured))
}

/// The app with its gateway.
struct App {
    mill: Arc<Mill>,
    gateway: Gateway,
    /// The events per second of the stream beside the calls.
    wages_per_s: Option<f64>,
}

/// The outcome of a stopped app.
struct Stopped {
    balances: Vec<Option<i64>>,
    committed: u64,
    were_paid: bool,
    state_hash: String,
}

impl App {
    fn start(
        args: &Args,
        env: &Env,
        program: &Program,
        connections: usize,
        durable: Durable,
    ) -> Result<App> {
        let data = args.sink.as_ref().map(|folder| Path::new(folder).join("data"));
        let settings = Settings {
            fresh: true,
            data_dir: data.filter(|_| durable != Durable::None),
            durable: durable.setting(),
            http_port: Some(0),
            http_connections_max: connections + 1,
            ..Settings::default()
        };
        let plan = Plan::of(&settings, env)?.expect("a port is set");
        let mut sources = vec![SourceDecl::pushed("deposit.calls")];
        sources.extend(args.beside.map(|_| SourceDecl::pushed(wages::WAGES)));
        let spec = AppSpec::new(program.clone(), sources, settings);
        let mut wages_per_s = None;
        if let Some(share) = args.beside {
            let alone = Mill::start(spec.clone(), env.clone())?;
            wages_per_s = Some(share * wages::most(env, &alone, args.keys)?);
            alone.stop()?;
        }
        let mill = Arc::new(Mill::start(spec, env.clone())?);
        let gateway = Gateway::start(plan, mill.clone(), env)?;
        Ok(App { mill, gateway, wages_per_s })
    }

    /// Starts the stream beside the calls, if there is one.
    fn payer(&self, args: &Args, env: &Env) -> Result<Option<wages::Payer>> {
        let pay = |per_s| wages::Payer::start(env, &self.mill, per_s, args.keys);
        self.wages_per_s.map(pay).transpose()
    }

    fn stop(&self, args: &Args, wages: u64) -> Result<Stopped> {
        let App { mill, gateway, .. } = self;
        mill.drain()?;
        gateway.drain();
        let summary = mill.stop()?;
        gateway.stop();
        let table = mill.table("accounts")?;
        let (ids, sums) = (table.ints(0).unwrap_or(&[]), table.ints(1).unwrap_or(&[]));
        let mut balances = vec![None; args.keys];
        for (id, balance) in ids.iter().zip(sums) {
            // External clients may call with any account.
            if let Some(place) = balances.get_mut(*id as usize) {
                *place = Some(*balance);
            }
        }
        let were_paid = args.beside.is_none() || wages::were_paid(mill, wages, args.keys)?;
        let (committed, state_hash) = (summary.committed, summary.state_hash);
        Ok(Stopped { balances, committed, were_paid, state_hash })
    }
}

struct Ended {
    seconds: f64,
    waits_ns: Vec<u64>,
    valid: bool,
    state_hash: String,
    /// The events per second of the stream beside the calls.
    wages_per_s: Option<f64>,
}

fn run_once(
    args: &Args,
    env: &Env,
    program: &Program,
    calls: &Calls,
    durable: Durable,
) -> Result<Ended> {
    let app = App::start(args, env, program, calls.connections(), durable)?;
    let addr = Addr::Tcp(app.gateway.address());
    let mut clients = Vec::new();
    for rounds in &calls.clients {
        let connect = || Client::open(env, &addr);
        let connections = rounds[0].iter().map(|_| connect()).collect::<Result<Vec<Client>>>()?;
        clients.push((connections, rounds.clone()));
    }
    let payer = app.payer(args, env)?;
    let begun = env.clock.monotonic_ns();
    let (tell, told) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for (connections, rounds) in clients {
        let (tell, env) = (tell.clone(), env.clone());
        let body = {
            let env = env.clone();
            // If nobody receives the result, the run has failed already.
            Box::new(move || drop(tell.send(client(&env, connections, &rounds))))
        };
        let thread = env.threads.spawn("bench-client", body);
        threads.push(thread.map_err(|e| Error::io("starting a client", &e))?);
    }
    drop(tell);
    let mut waits_ns = Vec::new();
    for waits in &told {
        let waits: Vec<u64> = waits?;
        waits_ns.extend_from_slice(&waits[(waits.len() as f64 * WARM_UP) as usize..]);
    }
    let seconds = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    for thread in threads {
        thread.join().map_err(|panic| Error::internal(format!("a client: {panic}")))?;
    }
    let wages = payer.map_or(Ok(0), wages::Payer::end)?;
    let stopped = app.stop(args, wages)?;
    let valid = stopped.balances == calls.balances
        && stopped.committed == calls.count() as u64 + wages
        && stopped.were_paid;
    let wages_per_s = app.wages_per_s.map(|_| wages as f64 / seconds);
    Ok(Ended { seconds, waits_ns, valid, state_hash: stopped.state_hash, wages_per_s })
}

/// Makes calls round by round; returns the latency of each.
fn client(env: &Env, mut connections: Vec<Client>, rounds: &[Vec<Vec<u8>>]) -> Result<Vec<u64>> {
    let mut waits = Vec::with_capacity(rounds.len() * connections.len());
    let mut sent = vec![0; connections.len()];
    for round in rounds {
        for ((connection, request), sent) in connections.iter_mut().zip(round).zip(&mut sent) {
            *sent = env.clock.monotonic_ns();
            connection.write(request)?;
        }
        for (connection, sent) in connections.iter_mut().zip(&sent) {
            connection.read()?;
            waits.push(env.clock.monotonic_ns() - sent);
        }
    }
    Ok(waits)
}

/// A connection that waits for one reply at a time.
struct Client {
    connection: Box<dyn Connection>,
    buffer: Vec<u8>,
}

impl Client {
    fn open(env: &Env, addr: &Addr) -> Result<Client> {
        let connection = env.net.connect(addr, CONNECT_US);
        let connection = connection.map_err(|e| Error::io("connecting", &e))?;
        Ok(Client { connection, buffer: vec![0; 4096] })
    }

    fn write(&mut self, request: &[u8]) -> Result<()> {
        self.connection.write_all(request).map_err(|e| Error::io("calling", &e))
    }

    /// Reads a reply, which must say that the call was executed.
    fn read(&mut self) -> Result<()> {
        let mut read = 0;
        loop {
            let more = self.connection.read(&mut self.buffer[read..]);
            let more = more.map_err(|e| Error::io("reading a reply", &e))?;
            read += more;
            let text = &self.buffer[..read];
            if let Some(head) = text.windows(4).position(|w| w == b"\r\n\r\n") {
                let length = length(&text[..head]).unwrap_or(0);
                if read >= head + 4 + length {
                    return match text.starts_with(b"HTTP/1.1 200 ") {
                        true => Ok(()),
                        false => Err(wrong(text)),
                    };
                }
            }
            if more == 0 || read == self.buffer.len() {
                return Err(wrong(&self.buffer[..read]));
            }
        }
    }
}

fn length(head: &[u8]) -> Option<usize> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.lines();
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

fn wrong(text: &[u8]) -> Error {
    Error::internal(format!("a call was answered: {}", String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use crate::run_json;

    #[test]
    fn others_may_call() {
        let mut address = String::new();
        let (tell, told) = std::sync::mpsc::channel();
        let threads = tidemill_env::Env::real().threads;
        let caller = move || {
            let env = tidemill_env::Env::real();
            let said: String = told.recv().unwrap();
            let at = said.split("//").nth(1).unwrap().split('/').next().unwrap();
            let mut client = super::Client::open(&env, &at.parse().unwrap()).unwrap();
            let request = "POST /call/deposit HTTP/1.1\r\nHost: localhost\r\nContent-Type: \
                           application/json\r\nContent-Length: 24\r\n\r\n{\"account\":3,\"amount\":1}";
            for _ in 0..5 {
                client.write(request.as_bytes()).unwrap();
                client.read().unwrap();
            }
        };
        let caller = threads.spawn("caller", Box::new(caller)).unwrap();
        let json = r#"{"workload":"http","program":"rust","keys":9,"serve":1.5}"#;
        let text = run_json(json, None, Vec::new(), &mut |said| {
            address = said.to_owned();
            tell.send(said.to_owned()).unwrap();
        });
        caller.join().unwrap();
        let report: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!((&report["valid"], &report["events"]), (&true.into(), &5.into()), "{report}");
        assert!(address.ends_with("for 1.5 s"), "{address}");
    }

    #[test]
    fn what_is_called_is_done_once() {
        let folder = tempfile::tempdir().unwrap();
        let sink = folder.path().display();
        for options in [
            r#""program":"rust","durable":"log","requests":true"#,
            r#""program":"traced","durable":"log+snapshots","connections":5"#,
            r#""program":"rust","connections":1"#,
            r#""program":"rust","durable":"log","beside":0.1"#,
            r#""program":"traced","beside":0.01"#,
        ] {
            let json = format!(
                r#"{{"workload":"http","keys":100,"repeat":1,"events":600,"sink":"{sink}",{options}}}"#
            );
            let text = run_json(&json, None, Vec::new(), &mut |_| {}).unwrap();
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(report["valid"], true, "{report}");
            assert!(report["latency_ms"]["p99"].as_f64() > Some(0.0), "{report}");
        }
    }
}
