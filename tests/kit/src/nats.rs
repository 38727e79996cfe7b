//! Servers of NATS with JetStream on 127.0.0.1. A test without `nats-server` is skipped with a message.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::server::closed_address;
use crate::{HttpCall, TIMEOUT, wait};

/// A server with a folder of its own, which it keeps over a kill.
pub struct NatsServer {
    child: Child,
    program: PathBuf,
    arguments: Vec<String>,
    client: SocketAddr,
    monitor: SocketAddr,
    _folder: tempfile::TempDir,
}

fn find() -> Option<PathBuf> {
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let found = path.split(':').map(|folder| Path::new(folder).join("nats-server")).find(|path| path.is_file());
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: nats-server is not installed");
    }
    found
}

impl NatsServer {
    /// A single server.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with more arguments.
    pub fn start_with(more: &[&str]) -> Option<Self> {
        let server = Self::spawn(find()?, more.iter().map(|one| (*one).to_owned()).collect());
        server.wait_ready();
        Some(server)
    }

    /// Three servers that are one cluster.
    pub fn cluster() -> Option<Vec<Self>> {
        let program = find()?;
        let routes: Vec<SocketAddr> = [0; 3].map(|_| closed_address()).to_vec();
        let all: Vec<String> = routes.iter().map(|route| format!("nats://{route}")).collect();
        let of_cluster = |(number, route): (usize, &SocketAddr)| {
            let cluster =
                ["--cluster_name", "kit", "--cluster", &format!("nats://{route}"), "--routes", &all.join(",")];
            let name = ["--name".to_owned(), format!("n{number}")];
            cluster.map(str::to_owned).into_iter().chain(name).collect()
        };
        let servers: Vec<_> =
            routes.iter().enumerate().map(of_cluster).map(|more| Self::spawn(program.clone(), more)).collect();
        servers.iter().for_each(Self::wait_ready);
        let has_leader =
            || servers[0].jetstream("")["meta_cluster"]["leader"].as_str().is_some_and(|name| !name.is_empty());
        wait::until(TIMEOUT, "the cluster to elect a leader", || has_leader().then_some(()));
        Some(servers)
    }

    fn spawn(program: PathBuf, more: Vec<String>) -> Self {
        let (client, monitor) = (closed_address(), closed_address());
        let folder = tempfile::tempdir().unwrap();
        let (port, monitor_port) = (client.port().to_string(), monitor.port().to_string());
        let store = folder.path().display().to_string();
        let own = ["-a", "127.0.0.1", "-p", &port, "-m", &monitor_port, "-js", "-sd", &store].map(str::to_owned);
        let arguments: Vec<String> = own.into_iter().chain(more).collect();
        let child = run(&program, &arguments);
        Self { child, program, arguments, client, monitor, _folder: folder }
    }

    fn wait_ready(&self) {
        wait::until(TIMEOUT, "the NATS server to listen", || TcpStream::connect(self.client).ok());
        wait::until(TIMEOUT, "its monitor to listen", || TcpStream::connect(self.monitor).ok());
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        format!("nats://{}", self.client)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// After [`NatsServer::kill`], on the same ports with the same files.
    pub fn start_again(&mut self) {
        self.child = run(&self.program, &self.arguments);
        self.wait_ready();
    }

    /// What the server reports of JetStream; `query` begins with `?`, or is empty.
    pub fn jetstream(&self, query: &str) -> Value {
        let text = HttpCall::get(&format!("/jsz{query}")).send(self.monitor).text();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// The streams on this server, with their consumers and configurations.
    pub fn streams(&self) -> Vec<Value> {
        let report = self.jetstream("?accounts=true&streams=true&consumers=true&config=true");
        let accounts = report["account_details"].as_array().cloned().unwrap_or_default();
        accounts.iter().flat_map(|account| account["stream_detail"].as_array().cloned().unwrap_or_default()).collect()
    }

    /// Receives what is published on `subject` from now on, as any client of NATS.
    pub fn subscribe(&self, subject: &str) -> NatsSubscription {
        let stream = TcpStream::connect(self.client).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut reader = BufReader::new(stream);
        let connect = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}";
        reader.get_mut().write_all(format!("{connect}\r\nSUB {subject} 1\r\nPING\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        while !line.starts_with("PONG") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the NATS server closed the connection");
        }
        NatsSubscription { reader }
    }
}

fn run(program: &Path, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// See [`NatsServer::subscribe`].
pub struct NatsSubscription {
    reader: BufReader<TcpStream>,
}

impl NatsSubscription {
    /// The headers, one a line, and the body of the next message with headers.
    pub fn next_message(&mut self) -> (String, Vec<u8>) {
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the NATS server closed the connection");
            let Some(head) = line.strip_prefix("HMSG ") else { continue };
            let sizes: Vec<usize> = head.split_whitespace().rev().take(2).map(|word| word.parse().unwrap()).collect();
            let mut bytes = vec![0; sizes[0] + 2]; // with its line end
            self.reader.read_exact(&mut bytes).unwrap();
            bytes.truncate(sizes[0]);
            let body = bytes.split_off(sizes[1]);
            return (String::from_utf8(bytes).unwrap(), body);
        }
    }
}
