//! What systemd relies on: notifications, a hot restart by signal, and sockets that it makes before the start.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, wait};
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn pid_of(appliance: &Appliance) -> i32 {
    i32::try_from(appliance.pid()).unwrap()
}

/// In place of systemd: receives the notifications of a service.
struct NotifySocket {
    socket: UnixDatagram,
    path: String,
    _folder: tempfile::TempDir,
}

impl NotifySocket {
    fn new() -> NotifySocket {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify").display().to_string();
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        NotifySocket { socket, path, _folder: folder }
    }

    fn next(&self) -> String {
        let mut message = [0; 256];
        let length = self.socket.recv(&mut message).expect("a notification");
        String::from_utf8(message[..length].to_vec()).unwrap()
    }
}

/// A successor that is no child of this test. Ended with the test, however that ends.
struct Orphan(i32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::KILL); // it may have ended already
    }
}

/// As `systemctl kill --signal=USR2` after an upgrade of the package: the process starts its own successor, tells systemd which
/// process is the main one now, and no request fails.
#[test]
fn usr2_starts_a_successor_and_names_it_to_systemd() {
    let (systemd, upstream) = (NotifySocket::new(), TestUpstream::start("one"));
    let setup = ApplianceSetup::new(BIN).route(HOST, upstream.address()).env("NOTIFY_SOCKET", &systemd.path);
    let mut old = setup.start();
    assert_eq!(systemd.next(), "READY=1");
    signal(pid_of(&old), Signal::USR2);
    let main = systemd.next();
    let successor = Orphan(main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}")).parse().unwrap());
    assert_ne!(successor.0, pid_of(&old));
    assert_eq!(HttpCall::get("/").host(HOST).send(old.http()).status, 200);
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    assert_eq!(HttpCall::get("/").host(HOST).send(old.http()).status, 200);
    assert_eq!(HttpCall::get("/readyz").send(old.admin()).status, 200);

    // The successor is a service like any other: it can be replaced again, and be stopped.
    signal(successor.0, Signal::USR2);
    let main = systemd.next();
    let last = Orphan(main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}")).parse().unwrap());
    assert_eq!(HttpCall::get("/").host(HOST).send(old.http()).status, 200);
    signal(last.0, Signal::TERM);
    assert_eq!(systemd.next(), "STOPPING=1");
    wait::until(TIMEOUT, "the end", || HttpConnection::try_open(old.http()).is_err().then_some(()));
}

/// A unit with `--hot-restart` takes over from a process that is none of its own: its start must not time out.
#[test]
fn successor_in_another_unit_reports_that_it_serves() {
    let systemd = NotifySocket::new();
    let mut old = ApplianceSetup::new(BIN).start();
    let like_it = old.setup().clone().ports(old.ports()).switch("hot-restart");
    let _new = like_it.env("NOTIFY_SOCKET", &systemd.path).start();
    assert_eq!(systemd.next(), "READY=1");
    assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
}

/// The reason is in the log, and the next signal tries again.
#[test]
fn usr2_with_invalid_settings_leaves_the_process_running() {
    let setup = ApplianceSetup::new(BIN);
    let config = setup.write_file("config.toml", "domain = \"one.test\"\n");
    let mut appliance = setup.flag("config", &config.display().to_string()).start();
    std::fs::write(&config, "domian = \"two.test\"\n").unwrap();
    for ended in 1..=2 {
        signal(pid_of(&appliance), Signal::USR2);
        wait::until(TIMEOUT, "the end of the successor", || {
            (appliance.stderr().matches("the successor has ended").count() == ended).then_some(())
        });
    }
    assert!(appliance.stderr().contains("domian"), "{}", appliance.stderr());
    assert_eq!(HttpCall::get("/healthz").send(appliance.admin()).status, 200);
    assert_eq!(appliance.terminate().code(), Some(0));
}

/// A start in the words of a socket unit: the listener is descriptor 3, and variables name it.
fn activate(listener: &TcpListener, name: &str, setup: &ApplianceSetup) -> Child {
    let passed: OwnedFd = listener.try_clone().unwrap().into();
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=$0; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, name, BIN]).args(setup.command().get_args());
    shell.stdin(passed).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A connection from before the start waits in the queue of the socket, and is served.
#[test]
fn socket_of_systemd_is_served_from_before_the_start() {
    let upstream = TestUpstream::start("one");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut early = TcpStream::connect(address).unwrap();
    early.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(early, "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n").unwrap();

    let setup = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "2");
    let setup = setup.flag("http", &address.to_string());
    let mut service = activate(&listener, "http", &setup);
    let mut ready = String::new();
    BufReader::new(service.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with(&format!("ready http={address} ")), "{ready}");
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for _ in 0..20 {
        assert_eq!(HttpCall::get("/").host(HOST).send(address).status, 200);
    }
    signal(i32::try_from(service.id()).unwrap(), Signal::TERM);
    assert_eq!(service.wait().unwrap().code(), Some(0));
}

#[test]
fn socket_of_systemd_that_fits_no_setting_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (name, wanted) in [
        ("sluicegate.socket", "FileDescriptorName=sluicegate.socket is none of http"),
        ("https", "--https, which is not set"),
        ("http", "make ListenStream= and --http the same"),
    ] {
        let setup = ApplianceSetup::new(BIN).flag("http", "127.0.0.2:0");
        let output = activate(&listener, name, &setup).wait_with_output().unwrap();
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && reported.contains(wanted), "{name}: {reported}");
    }
}
