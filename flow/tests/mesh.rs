//! Two real processes: the test's binary runs itself again.

mod common;

use std::process::{Child, Command};
use std::sync::Arc;

use common::*;
use tidemill_core::Kind;
use tidemill_env::{Env, Listener};
use tidemill_flow::{follow, run, Gate, Input, Mesh, MeshPlan, Spec};

const WORKERS: usize = 2;
/// The source, worker and number of rows.
const SOURCES: [(u32, usize, u64); 4] = [(0, 0, 3000), (1, 1, 2000), (2, 2, 2500), (3, 3, 1500)];
const ROLE: &str = "TIDEMILL_FLOW_ROLE";
const ADDRESS: &str = "TIDEMILL_FLOW_ADDRESS";

fn loopback(env: &Env) -> Arc<dyn Listener> {
    env.net.listen(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap().into()
}

fn plan(rank: usize, first: std::net::SocketAddr) -> MeshPlan {
    // No process connects to the last one.
    let addresses = vec![first, ([127, 0, 0, 1], 1).into()];
    MeshPlan { token: 42, rank, addresses, workers: WORKERS, deadline_us: 10_000_000 }
}

fn mesh_spec(env: &Env, mesh: Mesh, at_end: At) -> Spec {
    let rank = mesh.rank();
    let inputs = SOURCES
        .iter()
        .map(|&(source, worker, rows)| {
            // Only the second process fails.
            let at_end = if rank == 1 { at_end } else { At::End };
            let ingress = Count::new(source, rows, at_end);
            let mut input = input(source, worker, ingress);
            input.branches = vec![plain(0), divided(1, 7)];
            if worker / WORKERS != rank {
                input = Input { ingress: None, ..input };
            }
            input
        })
        .collect();
    Spec { mesh: Some(mesh), env: env.clone(), ..spec(WORKERS, inputs) }
}

/// The second process. It is a test, so that the binary can run it separately. Otherwise it does
/// nothing.
#[test]
fn second_process() {
    let (Ok(role), Ok(address)) = (std::env::var(ROLE), std::env::var(ADDRESS)) else { return };
    let env = Env::real();
    let mesh = Mesh::form(&env, loopback(&env), &plan(1, address.parse().unwrap())).unwrap();
    let at_end = match &*role {
        "end" => At::End,
        "fail" => At::Fail,
        "panic" => At::Panic,
        "exit" => At::Exit,
        "wait" => At::Wait,
        _ => unreachable!("{role}"),
    };
    // The gate is small, so this process must learn what the first process has taken.
    let gate = Gate::new(3000);
    let result = follow(mesh_spec(&env, mesh, at_end), gate.clone());
    match at_end {
        At::End => {
            result.unwrap();
            assert!(gate.closed() > 5, "epochs closed here, too: {}", gate.closed());
        }
        At::Fail => assert_eq!(result.unwrap_err().what, "the disk is gone"),
        At::Panic => assert!(result.unwrap_err().what.contains("process 1 panicked: on purpose")),
        At::Exit => unreachable!(),
        At::Wait => assert_eq!(result.unwrap_err().what, "enough"),
    }
}

fn second(role: &str, address: std::net::SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "second_process", "--nocapture"])
        .env(ROLE, role)
        .env(ADDRESS, address.to_string())
        .spawn()
        .unwrap()
}

fn first(role: &str) -> (tidemill_core::Result<()>, Taken, Arc<Gate>, std::process::ExitStatus) {
    let env = Env::real();
    let listener = loopback(&env);
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let mut child = second(role, address);
    let mesh = Mesh::form(&env, listener, &plan(0, address)).unwrap();
    let gate = Gate::new(3000);
    let (conductor, taken) = Collect::new(&gate, SOURCES.len(), 200);
    let spec = mesh_spec(&env, mesh, At::End);
    let result = match role {
        "wait" => run(spec, gate.clone(), Box::new(Enough(conductor))),
        _ => run(spec, gate.clone(), Box::new(conductor)),
    };
    let status = child.wait().unwrap();
    (result, taken, gate, status)
}

/// A conductor that fails when the first epochs have arrived.
struct Enough(Collect);

impl tidemill_flow::Conductor for Enough {
    fn turn(
        &mut self,
        closed: u64,
        deposits: &mut tidemill_flow::Deposits,
    ) -> tidemill_core::Result<tidemill_flow::Turn> {
        if closed > 5 {
            return Err(tidemill_core::Error::input("enough"));
        }
        self.0.turn(closed, deposits)
    }
}

#[test]
fn rows_of_two_processes_come_to_the_first() {
    let (result, taken, gate, status) = first("end");
    result.unwrap();
    assert!(status.success());
    let ends: Vec<(u32, u64)> = SOURCES.iter().map(|&(s, _, rows)| (s, rows)).collect();
    let taken = taken.lock().unwrap();
    check(&taken, &ends, &[(0, Some), (1, |v| (v % 7 == 0).then_some(v))]);
    assert!(taken.len() > 5);
    assert_eq!(gate.bytes(), 0);
}

#[test]
fn an_error_in_either_process_ends_both() {
    let (result, _, _, status) = first("fail");
    assert_eq!(result.unwrap_err().what, "the disk is gone");
    assert!(status.success());
    let (result, _, _, status) = first("panic");
    assert!(result.unwrap_err().what.contains("process 1 panicked: on purpose"));
    assert!(status.success());
    let (result, _, _, status) = first("wait");
    assert_eq!(result.unwrap_err().what, "enough");
    assert!(status.success());
}

#[test]
fn a_process_that_dies_ends_the_run() {
    let (result, _, _, status) = first("exit");
    let error = result.unwrap_err();
    assert_eq!(error.kind, Kind::Io, "{error}");
    assert!(error.what.contains("connection to another process"), "{error}");
    assert_eq!(status.code(), Some(7));
}

#[test]
fn a_mesh_has_a_deadline_and_turns_strangers_away() {
    let env = Env::real();
    let listener = loopback(&env);
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let stranger = {
        let (env, plan) = (env.clone(), MeshPlan { token: 43, ..plan(1, address) });
        let body = move || {
            let error = Mesh::form(&env, loopback(&env), &plan).unwrap_err();
            assert_eq!(error.kind, Kind::Setting, "{error}");
        };
        Env::real().threads.spawn("stranger", Box::new(body)).unwrap()
    };
    let hasty = MeshPlan { deadline_us: 300_000, ..plan(0, address) };
    let error = Mesh::form(&env, listener, &hasty).unwrap_err();
    assert!(error.what.contains("processes 1 did not connect"), "{error}");
    stranger.join().unwrap();
    let alone = MeshPlan { deadline_us: 50_000, ..plan(1, address) };
    let error = Mesh::form(&env, loopback(&env), &alone).unwrap_err();
    assert!(error.what.contains("process 0 at"), "{error}");
}
