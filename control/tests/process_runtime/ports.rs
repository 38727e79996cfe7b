//! The container port, which each instance can use. Skipped if the kernel does not support it here.

use std::net::TcpListener;

use super::*;

/// What `script` writes, one line each, up to its end; `None` where instances get a free port instead of theirs.
async fn lines(host: &TestRuntimeHost, spec: InstanceSpec) -> Option<Vec<String>> {
    let mut instance = host.start(1, spec);
    while !matches!(instance.report().await, InstanceReport::Exited(_)) {} // it may be ready for a moment
    let log = host.log(1);
    let said: Vec<_> = log.lines().filter_map(|line| Some(line.split_once(" F ")?.1.to_owned())).collect();
    let has_it = said.first().is_some_and(|port| port == "8080");
    if !has_it {
        eprintln!("skipped: ports cannot be given here: {said:?}");
    }
    has_it.then_some(said)
}

/// Python represents all programs that do not know the appliance.
fn python(script: &str) -> InstanceSpec {
    let first = "import os,socket\nprint(os.environ['PORT'],flush=True)\n";
    spec(&["/usr/bin/env", "python3", "-c", &format!("{first}{script}").replace('$', "$$")])
}

/// RT-PORT-03, RT-PORT-10, RT-ENV-01, RT-ISO-08: two instances listen on their hard-coded port, each on its own, on
/// loopback, where other hosts cannot reach them.
#[tokio::test]
async fn two_instances_have_the_same_port_each_for_itself() {
    let host = TestRuntimeHost::new();
    let script = "s=socket.create_server(('0.0.0.0',8080));print(s.getsockname()[0],flush=True)\n\
                  while True:\n c=s.accept()[0]; c.sendall(b'mine'); c.close()";
    let Some(_) = lines(&host, python("")).await else { return };
    let (mut one, mut other) = (host.start(2, python(script)), host.start(3, python(script)));
    let (first, second) = (one.ready().await, other.ready().await);
    assert_ne!(first, second);
    assert!(first.ip().is_loopback() && second.ip().is_loopback(), "{first} {second}");
    for (address, id) in [(first, 2), (second, 3)] {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut TcpStream::connect(address).unwrap(), &mut said).unwrap();
        assert_eq!(said, "mine");
        host.wrote(id, " F 127.0.0.1").await; // not on every address
    }
}

/// What an instance dials as its own port on loopback is itself; other ports of the host are the host's.
#[tokio::test]
async fn an_instance_finds_itself_and_the_host() {
    let runtime_host = TestRuntimeHost::new();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = format!(
        "s=socket.create_server(('::',8080),family=socket.AF_INET6,dualstack_ipv6=True)\n\
         for at in [('127.0.0.1',8080),('::1',8080),('127.0.0.1',{})]:\n socket.create_connection(at)\nprint('all')",
        host.local_addr().unwrap().port()
    );
    let Some(said) = lines(&runtime_host, python(&script)).await else { return };
    assert_eq!(said.last().unwrap(), "all", "{said:?}");
}

/// RT-LIFE-11: by no name of loopback.
#[tokio::test]
async fn an_instance_does_not_reach_what_is_closed_to_it() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    let host = TestRuntimeHost::without(vec![port]);
    let script = format!(
        "for at in ['127.0.0.1','0.0.0.0','127.9.9.9','::ffff:127.0.0.1']:\n\
         \x20try:\n  socket.create_connection((at,{port}),5); print('reached',at)\n\
         \x20except PermissionError: print('refused')"
    );
    let Some(said) = lines(&host, python(&script)).await else { return };
    assert_eq!(said[1..], ["refused", "refused", "refused", "refused"], "{said:?}");
}

/// Whatever an instance came to, nothing of its group is left.
#[tokio::test]
async fn groups_go_with_their_instances() {
    let host = TestRuntimeHost::new();
    let Some(_) = lines(&host, python("")).await else { return };
    let groups = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
        let points: Vec<_> = points.filter_map(|line| line.split(' ').nth(4)).collect();
        let found = points.iter().flat_map(|point| walk(Path::new(point)));
        found.filter(|path| path.ends_with("77001") || path.ends_with("77002")).count()
    };
    let mut lives = host.start(77_001, listener());
    lives.ready().await;
    assert_eq!(groups(), 1);
    lives.handle.stop();
    lives.gone().await;
    let broken = InstanceSpec { env: vec![("A".into(), "b\0c".into())], ..listener() };
    assert_eq!(host.start(77_002, broken).gone().await.cause, ExitCause::NotStarted);
    assert_eq!(groups(), 0);
}

/// The folders below `folder`.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .flat_map(|entry| {
            let mut all = walk(&entry.path());
            all.push(entry.path());
            all
        })
        .collect()
}
