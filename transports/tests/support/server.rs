//! Servers of other projects, on 127.0.0.1. A test without its server is skipped with a message.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{free_port, wait};

pub(crate) struct Server {
    child: Child,
    /// The same command, for a start after a kill.
    command: Box<dyn Fn() -> Command + Send>,
    pub(crate) port: u16,
    directory: tempfile::TempDir,
    /// The port of Erlang's name server, which ends after its node.
    epmd: Option<u16>,
}

/// The program in PATH or in the directories of servers.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let postgresql: String = versions.map(|version| format!("{}/bin:", version.path().display())).collect();
    let path = format!("/usr/lib/rabbitmq/bin:{postgresql}{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let found = path.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.is_file());
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: {program} is not installed");
    }
    found
}

impl Server {
    /// Starts `program` with the arguments that `arguments` makes of a port and a directory.
    pub(crate) fn start(program: &str, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Option<Server> {
        Server::start_at(free_port(), program, arguments)
    }

    fn start_at(port: u16, program: &str, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Option<Server> {
        Server::start_with(&[], port, program, arguments)
    }

    fn start_with(
        variables: &[(&str, &str)],
        port: u16,
        program: &str,
        arguments: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Option<Server> {
        let program = find(program)?;
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments(port, directory.path());
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let command = move || {
            let mut command = Command::new(&program);
            command.args(&arguments).envs(variables.iter().map(|(name, value)| (name, value)));
            command
        };
        Some(Server::run(Box::new(command), port, directory, None))
    }

    fn run(
        command: Box<dyn Fn() -> Command + Send>,
        port: u16,
        directory: tempfile::TempDir,
        epmd: Option<u16>,
    ) -> Server {
        let child = spawn(&mut command());
        let server = Server { child, command, port, directory, epmd };
        server.wait_listening();
        server
    }

    fn wait_listening(&self) {
        wait("the server to listen", || TcpStream::connect(("127.0.0.1", self.port)).ok());
    }

    /// kill -9 of the server and of what it started.
    pub(crate) fn kill(&mut self) {
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
    }

    /// After [`Server::kill`], on the same port with the same files.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&mut (self.command)());
        self.wait_listening();
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn redis() -> Option<Server> {
        Server::start("redis-server", |port, directory| {
            let dir = directory.display().to_string();
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &dir, "--appendonly", "yes", "--save", ""]
                .map(str::to_owned)
                .to_vec()
        })
    }

    pub(crate) fn nats() -> Option<Server> {
        Server::start("nats-server", |port, directory| {
            let dir = directory.display().to_string();
            ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &dir].map(str::to_owned).to_vec()
        })
    }
}

fn spawn(command: &mut Command) -> Child {
    // A group of its own: some servers are started by a script.
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if let Some(epmd) = self.epmd {
            let kill = ["-port", &epmd.to_string(), "-kill"].map(str::to_owned);
            wait("the end of epmd", || {
                Command::new("epmd")
                    .args(&kill)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                    .ok()?
                    .success()
                    .then_some(())
            });
        }
    }
}

impl Server {
    pub(crate) fn mosquitto() -> Option<Server> {
        Server::start("mosquitto", |port, directory| {
            let path = directory.join("mosquitto.conf");
            // Without a limit on its queue the broker keeps what comes while the adapter is away.
            let config =
                format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\npersistence false\n");
            std::fs::write(&path, config).unwrap();
            ["-c", &path.display().to_string()].map(str::to_owned).to_vec()
        })
    }

    pub(crate) fn rabbitmq() -> Option<Server> {
        Server::rabbitmq_with(&|port| format!("listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n"))
    }

    /// `config`: of the port.
    pub(crate) fn rabbitmq_with(config: &dyn Fn(u16) -> String) -> Option<Server> {
        let program = find("rabbitmq-server")?;
        let directory = tempfile::tempdir().unwrap();
        let (port, distribution, epmd) = (free_port(), free_port(), free_port());
        let dir = directory.path().display().to_string();
        std::fs::write(directory.path().join("rabbitmq.conf"), config(port)).unwrap();
        // AMQP 1.0 on the same port.
        std::fs::write(directory.path().join("plugins"), "[rabbitmq_amqp1_0].\n").unwrap();
        let command = move || {
            let mut command = Command::new(&program);
            command
                .env("RABBITMQ_NODENAME", format!("test{port}@localhost"))
                .env("RABBITMQ_CONFIG_FILE", format!("{dir}/rabbitmq.conf"))
                .env("RABBITMQ_ENABLED_PLUGINS_FILE", format!("{dir}/plugins"))
                .env("RABBITMQ_MNESIA_BASE", format!("{dir}/mnesia"))
                .env("RABBITMQ_LOG_BASE", format!("{dir}/log"))
                .env("RABBITMQ_DIST_PORT", distribution.to_string())
                .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
                .env("ERL_EPMD_ADDRESS", "127.0.0.1")
                .env("ERL_EPMD_PORT", epmd.to_string())
                .env("HOME", &dir)
                .env("ERL_CRASH_DUMP", format!("{dir}/crash"));
            command
        };
        Some(Server::run(Box::new(command), port, directory, Some(epmd)))
    }
}

impl Server {
    /// SQS, S3 and IAM.
    pub(crate) fn moto() -> Option<Server> {
        Server::moto_with(&[])
    }

    pub(crate) fn moto_with(variables: &[(&str, &str)]) -> Option<Server> {
        Server::start_with(variables, free_port(), "moto_server", |port, _| {
            ["-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned).to_vec()
        })
    }
}

/// A directory with credentials, which moto does not verify.
pub(crate) fn aws_credentials() -> PathBuf {
    static DIRECTORY: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        for name in ["aws.accessKey", "aws.secretKey"] {
            std::fs::write(directory.path().join(name), "test\n").unwrap();
        }
        directory
    });
    directory.path().to_owned()
}

/// Makes a stream by the text protocol.
pub(crate) fn create_jetstream(port: u16, name: &str, subject: &str) {
    use std::io::{BufRead, BufReader};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let config = format!(r#"{{"name":"{name}","subjects":["{subject}"],"storage":"file"}}"#);
    let text = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\nPUB $JS.API.STREAM.CREATE.{name} reply {}\r\n{config}\r\n",
        config.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines();
    let answer = lines.find(|line| line.as_ref().unwrap().contains("stream_create_response")).unwrap().unwrap();
    assert!(!answer.contains("\"error\""), "{answer}");
}

impl Server {
    /// Kafka's protocol, in memory. `ports`: where it listens, and the port that it names to clients.
    pub(crate) fn tansu(ports: Option<(u16, u16)>) -> Option<Server> {
        Server::start_at(ports.map_or_else(free_port, |(port, _)| port), "tansu", |port, _| {
            let listener = format!("tcp://127.0.0.1:{port}");
            let advertised = format!("tcp://127.0.0.1:{}", ports.map_or(port, |(_, advertised)| advertised));
            [
                "broker",
                "--listener-url",
                &listener,
                "--advertised-listener-url",
                &advertised,
                "--storage-engine",
                "memory://tansu/",
            ]
            .map(str::to_owned)
            .to_vec()
        })
    }
}

#[cfg(feature = "kafka")]
pub(crate) fn create_topic(port: u16, name: &str, partitions: i32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kafka = krafka::Kafka::builder(format!("127.0.0.1:{port}")).connect().await.unwrap();
        let topic = krafka::admin::NewTopic::new(name, partitions, 1).unwrap();
        let created =
            kafka.admin().create_topics([topic], krafka::admin::CreateTopicsOptions::default()).await.unwrap();
        assert!(created.values().all(Result::is_ok), "{created:?}");
    });
}

impl Server {
    /// A cluster of the user `postgres`, because the server refuses to run as root.
    pub(crate) fn postgresql() -> Option<Server> {
        let (postgres, initdb, setpriv) = (find("postgres")?, find("initdb")?, find("setpriv")?);
        let directory = tempfile::tempdir().unwrap();
        let (data, port) = (directory.path().join("data"), free_port());
        let as_user = move |program: &Path| {
            let mut command = Command::new(&setpriv);
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
            command.current_dir("/");
            command
        };
        let owned = Command::new("chown").arg("postgres:postgres").arg(directory.path()).status().unwrap();
        let mut make = as_user(&initdb);
        make.arg("-D").arg(&data).args(["-A", "trust", "-U", "postgres", "--no-sync"]);
        if !owned.success() || !spawn(&mut make).wait().unwrap().success() {
            let _ = writeln!(std::io::stderr(), "skipped: no user postgres here, or this is not root");
            return None;
        }
        let command = move || {
            let mut command = as_user(&postgres);
            command.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-k", "", "-p", &port.to_string()]);
            command.args(["-c", "wal_level=logical", "-c", "wal_sender_timeout=10s"]);
            command
        };
        Some(Server::run(Box::new(command), port, directory, None))
    }
}
