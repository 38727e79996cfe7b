//! Compared with other proxies: what nginx or HAProxy reject, we reject, or the reason is listed here.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use kit::{TIMEOUT, wait};

use crate::framing::cases::read;
use crate::framing::requests::{Oracle, TABLE, put};

/// Cases that we take and another refuses, each one unambiguous by the RFC: its own taste in sizes, in methods,
/// or in hosts (an absolute target makes Host not count, RFC 9112 3.2.2; HAProxy wants the two to agree, and looks for a
/// host's end at a slash alone, where RFC 3986 3.2 has it end at a query too).
const DIFFERENCES: [&str; 12] = [
    "absolute: its host counts and not Host",
    "absolute, a query and no path",
    "OPTIONS of the server",
    "a method in small letters is another",
    "a method of odd tokens",
    "a method nobody knows",
    "a target of 8,000 bytes",
    "a value of 20,000 bytes",
    "a GET with a body",
    "chunks to a GET",
    "99 fields",
    "bytes past ASCII in a value",
];

struct FramingPeer {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for FramingPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a proxy in the foreground; `None` when it is not installed.
fn start(program: &str, config: impl Fn(SocketAddr) -> String, arguments: &[&str]) -> Option<FramingPeer> {
    let folder = tempfile::tempdir().unwrap();
    let address = kit::server::closed_address();
    let file = folder.path().join("peer.conf");
    std::fs::write(&file, config(address)).unwrap();
    let spawned = Command::new(program)
        .args(arguments)
        .arg(&file)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = spawned else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    let peer = FramingPeer { child, address, _folder: folder };
    let up = wait::try_until(TIMEOUT, || TcpStream::connect(address).ok());
    assert!(up.is_some(), "{program} does not listen");
    Some(peer)
}

/// What it refuses without passing anything on must not be among what we take.
fn compare(program: &str, peer: &FramingPeer, oracle: &Oracle) {
    let mut wrong = Vec::new();
    for case in read(TABLE) {
        let Some(taken) = case.columns[0].strip_prefix("= ") else { continue };
        let (statuses, seen) = put(&case, peer.address, oracle, taken.split(" ; ").count());
        let refused = seen.is_empty() && statuses.first().is_none_or(|status| *status >= 400);
        if refused && !DIFFERENCES.contains(&case.what) {
            wrong.push(format!("{}: {statuses:?}", case.what));
        }
    }
    assert!(wrong.is_empty(), "{program} refuses what we take:\n{}\n", wrong.join("\n"));
}

#[test]
fn what_nginx_refuses_is_refused() {
    let oracle = Oracle::start();
    let config = |address: SocketAddr| {
        format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr emerg;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;\n\
             uwsgi_temp_path u; scgi_temp_path s;\n\
             server {{ listen {address}; location / {{ proxy_pass http://{}; }} }} }}\n",
            oracle.address()
        )
    };
    if let Some(peer) = start("nginx", config, &["-p", ".", "-e", "stderr", "-c"]) {
        compare("nginx", &peer, &oracle);
    }
}

#[test]
fn what_haproxy_refuses_is_refused() {
    let oracle = Oracle::start();
    let config = |address: SocketAddr| {
        format!(
            "global\n  nbthread 1\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 10s\n  timeout server 10s\n\
             listen peer\n  bind {address}\n  server one {}\n",
            oracle.address()
        )
    };
    if let Some(peer) = start("haproxy", config, &["-db", "-f"]) {
        compare("haproxy", &peer, &oracle);
    }
}
