//! PostgreSQL: a separate server on the loopback address, and one client that sends votes in a
//! pipeline.
//!
//! The server has one connection, because votes are in order. A prepared statement calls one stored
//! function, so a vote is one round trip, and hundreds are in flight. There is enough memory to
//! avoid reads from disk, and no checkpoint during the run. Each vote commits by itself, unless
//! several form one transaction.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio_postgres::{Client, NoTls};

use crate::show::{Ended, Show, Tables, Wrong, TABLES};

/// The number of votes in flight.
const WINDOW: usize = 1024;
/// The longest time of a server's start.
const START: Duration = Duration::from_secs(60);

/// A running server. Dropping this value stops it.
pub struct Server {
    child: Child,
    port: u16,
}

/// Returns the user and group for the server. That is the own user, except for root, as whom the
/// server refuses to run.
fn user(folder: &Path) -> Result<Option<(u32, u32)>, Wrong> {
    if fs::metadata(folder)?.uid() != 0 {
        return Ok(None);
    }
    let id = |what: &str| -> Result<u32, Wrong> {
        let out = Command::new("id").args([what, "nobody"]).output()?;
        Ok(String::from_utf8(out.stdout)?.trim().parse()?)
    };
    Ok(Some((id("-u")?, id("-g")?)))
}

impl Server {
    /// Creates a database in a folder, and starts a server on it.
    pub fn start(folder: &Path) -> Result<Server, Wrong> {
        let data = folder.join("postgres");
        fs::create_dir(&data)?;
        let user = user(&data)?;
        if let Some((uid, gid)) = user {
            chown(&data, Some(uid), Some(gid))?;
        }
        let command = |program: &str| {
            let mut command = Command::new(program);
            command.current_dir(&data).stdin(Stdio::null()).stdout(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let made = command("initdb")
            .args(["--auth=trust", "--username=tidemill", "--encoding=UTF8", "--locale=C"])
            .args(["--pgdata".as_ref(), data.join("data").as_os_str()])
            .status()
            .map_err(|e| format!("initdb can't be run: {e}; install PostgreSQL's server"))?;
        if !made.success() {
            return Err(format!("initdb ended with {made}").into());
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = fs::File::create(folder.join("postgres.log"))?;
        let mut server = command("postgres");
        server.args(["-D".as_ref(), data.join("data").as_os_str()]).arg("-p").arg(port.to_string());
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=on",
            "shared_buffers=512MB",
            "wal_buffers=64MB",
            "max_wal_size=8GB",
            "checkpoint_timeout=1h",
            "wal_level=minimal",
            "max_wal_senders=0",
            "jit=off",
        ] {
            server.args(["-c", setting]);
        }
        let child = server.stderr(log).spawn()?;
        Ok(Server { child, port })
    }

    async fn connected(&mut self) -> Result<Client, Wrong> {
        let begun = Instant::now();
        let where_to = format!("host=127.0.0.1 port={} user=tidemill dbname=postgres", self.port);
        loop {
            match tokio_postgres::connect(&where_to, NoTls).await {
                Ok((client, connection)) => {
                    // The task ends with the client.
                    tokio::spawn(connection);
                    return Ok(client);
                }
                Err(error) if begun.elapsed() > START => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("postgres has ended with {status}").into());
            }
        }
    }

    /// Runs a show in an empty database. `commit` is the setting `synchronous_commit`, and `votes`
    /// the number of votes in a transaction.
    pub fn run(&mut self, show: &Show, commit: &str, votes: usize) -> Result<Ended, Wrong> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.run_async(show, commit, votes))
    }

    async fn run_async(&mut self, show: &Show, commit: &str, group: usize) -> Result<Ended, Wrong> {
        let client = self.connected().await?;
        client
            .batch_execute("drop schema public cascade; create schema public; checkpoint")
            .await?;
        let schema = include_str!("vote.sql")
            .replace("$CANDIDATES", &show.candidates.to_string())
            .replace("$EVERY", &show.every.to_string());
        client.batch_execute(&schema).await?;
        client.batch_execute(&format!("set synchronous_commit = {commit}")).await?;
        let vote = client.prepare("select vote($1, $2)").await?;
        let begun = Instant::now();
        // Futures are sent and answered in the order in which they are polled first.
        let mut on_their_way: FuturesOrdered<BoxFuture<'_, Result<i64, tokio_postgres::Error>>> =
            FuturesOrdered::new();
        let mut refused = 0;
        let mut rest: VecDeque<(usize, &(i32, i32))> = show.votes.iter().enumerate().collect();
        let bound = |text: &'static str| -> BoxFuture<'_, Result<i64, tokio_postgres::Error>> {
            let client = &client;
            Box::pin(async move { client.batch_execute(text).await.map(|()| 0) })
        };
        while !rest.is_empty() || !on_their_way.is_empty() {
            while on_their_way.len() < WINDOW {
                let Some((nth, (phone, candidate))) = rest.pop_front() else { break };
                if group > 1 && nth % group == 0 {
                    on_their_way.push_back(bound("begin"));
                }
                let (client, vote) = (&client, &vote);
                on_their_way.push_back(Box::pin(async move {
                    let row = client.query_one(vote, &[phone, candidate]).await?;
                    Ok(i64::from(row.get::<_, i32>(0) != 0))
                }));
                if group > 1 && (nth % group == group - 1 || rest.is_empty()) {
                    on_their_way.push_back(bound("commit"));
                }
            }
            if let Some(answer) = on_their_way.next().await {
                refused += answer?;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let mut tables = Tables::new();
        for (name, columns) in TABLES {
            let key = columns.split(',').next().unwrap_or_default();
            let select = format!("select {columns} from {name} order by {key}");
            let rows = client.query(&select, &[]).await?;
            let row = |row: &tokio_postgres::Row| -> Vec<i64> {
                (0..row.len()).map(|column| row.get::<_, i32>(column).into()).collect()
            };
            tables.insert(name.into(), rows.iter().map(row).collect());
        }
        Ok(Ended { seconds, refused, tables })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT stops the server at once, in order.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        let _ = self.child.wait();
    }
}

/// Returns the server's log, to explain a failed start.
pub fn log(folder: &Path) -> String {
    let path: PathBuf = folder.join("postgres.log");
    fs::read_to_string(path).unwrap_or_default()
}
