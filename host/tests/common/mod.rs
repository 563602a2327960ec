//! A cluster with real sockets and files in one process. Its program transfers between accounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;

use tidemill_cluster::Settings as Cluster;
use tidemill_core::{Column, DataType, TableId, Value};
use tidemill_durable::DirStore;
use tidemill_env::{Addr, Env};
use tidemill_function::{Activation, Call, Context, Functions, Step, Stop, Target};
use tidemill_host::{
    hold, Answer, CoordinatorProcess, FileLog, RequestServer, Served, Settings, Shared, WorkerLogs,
    WorkerProcess, SEGMENT_BYTES,
};
use tidemill_mesh::Secret;
use tidemill_txn::pool::SingleThread;
use tidemill_txn::program::{Abort, Builder};
use tidemill_txn::Program;

pub const ACCOUNTS: TableId = TableId(0);
pub const OPENING: i64 = 1_000;
const TRANSFER: Target = Target::Function(0);
const ADD: Target = Target::Function(1);
const APP: u128 = 77;

pub struct Accounts(Program);

impl Accounts {
    pub fn new() -> Arc<Accounts> {
        let mut b = Builder::new("accounts");
        let columns = ["id", "balance"].map(|name| Column::new(name, DataType::Int));
        b.table("account", &["id"], columns.to_vec());
        Arc::new(Accounts(b.finish().expect("a program")))
    }
}

impl Functions for Accounts {
    fn program(&self) -> &Program {
        &self.0
    }

    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        Ok(Box::new(OnAccount(call.clone())))
    }
}

struct OnAccount(Call);

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} is not an integer"),
    }
}

impl Activation for OnAccount {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let (id, args) = (self.0.key[0].clone(), &self.0.args);
        let held = context.get(ACCOUNTS, &self.0.key)?;
        let balance = held.map_or(OPENING, |row| int(&row[1]));
        if self.0.target == ADD {
            context.put(ACCOUNTS, &[id, Value::Int(balance + int(&args[0]))])?;
            return Ok(Step::Done(Value::Null));
        }
        let [to, amount] = [0, 1].map(|at| int(&args[at]));
        if balance < amount {
            return Err(Abort::refused("insufficient funds").into());
        }
        context.put(ACCOUNTS, &[id, Value::Int(balance - amount)])?;
        context.call(call(ADD, to, &[amount]), false)?;
        Ok(Step::Done(Value::Int(balance - amount)))
    }
}

fn call(target: Target, key: i64, args: &[i64]) -> Call {
    let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
    Call { target, table: ACCOUNTS, key: ints(&[key]), args: ints(args) }
}

pub fn transfer(from: i64, to: i64, amount: i64) -> Call {
    call(TRANSFER, from, &[to, amount])
}

/// The directory of a cluster, and its settings.
pub struct Site {
    pub dir: tempfile::TempDir,
    pub machine: Cluster,
    pub listen: Addr,
}

impl Site {
    pub fn new(sources: u32) -> Site {
        let machine = Cluster {
            seed: 7,
            sources,
            followed: 0,
            lease_us: 1_000_000,
            beat_us: 50_000,
            form_us: 3_000_000,
            epoch_max: 1_000,
            columns_max: 100,
            has_sole_owner: false,
            alternates: true,
            copies_outputs: false,
            outputs_max: 3,
            output_bytes: 1_000,
            snapshot_every: 20,
            snapshot_us: 0,
            program: 0,
            event_time: Arc::default(),
            resumed: [].into(),
            buffered_bytes_max: u64::MAX,
            memory_bytes_max: u64::MAX,
            stops_on_fault: false,
            clock_jump_us_max: i64::MAX,
            deaths_max: u32::MAX,
            function: tidemill_function::Settings::default(),
        };
        let dir = tempfile::tempdir().expect("a directory");
        Site { dir, machine, listen: "127.0.0.1:0".parse().expect("an address") }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            cluster: "bank".into(),
            secret: Secret::new(b"nobody knows it"),
            tls: None,
            app: APP,
            listen: self.listen.clone(),
            advertised: None,
            machine: self.machine.clone(),
            tick_us: 20_000,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.dir.path()).join(name)
    }

    pub fn store(&self) -> Arc<DirStore> {
        Arc::new(DirStore::shared(&Env::real(), self.path("store")).expect("a store"))
    }

    pub fn coordinator(&mut self) -> Coordinator {
        let env = Env::real();
        let held = hold(&env, &self.path("held")).expect("no other process uses it");
        let log = Arc::new(
            FileLog::open(&env, self.path("log"), APP, held, SEGMENT_BYTES).expect("a log"),
        );
        let shared = Shared { log: log.clone(), store: self.store() };
        let served = Served { log: Some(log.clone()), inputs: None };
        let started = CoordinatorProcess::start(&env, self.settings(), shared, served);
        let process = started.expect("a coordinator");
        // A restarted coordinator listens at the same address.
        self.listen = process.address();
        let sources = (self.machine.sources, self.machine.sources);
        let request_server = RequestServer::open(&env, log, sources);
        request_server.begin();
        Coordinator { process, request_server }
    }

    pub fn worker(&self) -> WorkerProcess {
        let mut settings = self.settings();
        settings.listen = "127.0.0.1:0".parse().expect("an address");
        let (at, store) = (self.listen.clone(), self.store());
        WorkerProcess::start(
            &Env::real(),
            settings,
            at,
            (Accounts::new(), Arc::new(SingleThread)),
            WorkerLogs::default(),
            store,
            None,
        )
        .expect("a worker")
    }
}

pub struct Coordinator {
    pub process: CoordinatorProcess,
    pub request_server: RequestServer,
}

impl Coordinator {
    pub fn send(&self, call: Call) -> Receiver<Answer> {
        let (tell, told) = channel();
        let partition = tidemill_place::partition(&tidemill_core::Key::of(&*call.key));
        let then = Box::new(move |answer| drop(tell.send(answer)));
        self.request_server.call(self.request_server.source_of(partition), call, then);
        told
    }

    pub fn call(&self, call: Call) -> Answer {
        let wait = std::time::Duration::from_secs(30);
        self.send(call)
            .recv_timeout(wait)
            .unwrap_or_else(|_| panic!("no reply: {:?}", self.process.status()))
    }

    /// Returns all balances that differ from the opening one.
    pub fn balances(&self, accounts: i64) -> BTreeMap<i64, i64> {
        let row = |id| match self.call(call(Target::Get, id, &[])) {
            Answer::Returned(Value::List(row)) => Some((id, int(&row[1]))),
            Answer::Returned(Value::Null) => None,
            other => panic!("{other:?}"),
        };
        (0..accounts).filter_map(row).collect()
    }

    /// Waits until this many members execute.
    pub fn wait_for(&self, members: usize) {
        let env = Env::real();
        for _ in 0..1_000 {
            let status = self.process.status();
            if status.generation > 0 && status.members.len() == members {
                return;
            }
            env.clock.sleep_us(20_000);
        }
        panic!("{:?}", self.process.status());
    }
}
