//! Prefork processes.

use std::collections::BTreeSet;

use super::*;

/// The children of this process that wait. No other test of it has any.
fn waiting() -> BTreeSet<i32> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = read("stat");
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent == Some(own.as_str()) && read("cmdline").ends_with("--wait\0")
    })
    .collect()
}

async fn wait_for(count: usize) -> BTreeSet<i32> {
    for _ in 0..TIMEOUT.as_millis() / 10 {
        let found = waiting();
        if found.len() == count {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} wait and not {count}", waiting());
}

/// Returns once the recorded prefork processes, which a successor cleans up, are these.
async fn wait_for_notes(host: &TestRuntimeHost, wanted: &BTreeSet<i32>) {
    let folder = host.dir.path().join("instances/.waiting/.any");
    let noted = || -> BTreeSet<i32> {
        let files = fs::read_dir(&folder).into_iter().flatten().flatten();
        let whole = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "run"));
        whole.filter_map(|file| leader(&file.path())).collect()
    };
    for _ in 0..TIMEOUT.as_millis() / 10 {
        if noted() == *wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} are noted and not {wanted:?}", noted());
}

/// The process that a record names.
fn leader(record: &Path) -> Option<i32> {
    let record: serde_json::Value = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
    record["process"]["pid"].as_i64()?.try_into().ok()
}

/// The environment that a program can observe, without the values of its own.
const LOOK: &str = "env | grep -v -e ^PORT= -e ^SLUICEGATE_ -e ^HOSTNAME= | sort; pwd; id; hostname; umask; ulimit -a; \
    readlink /proc/self/fd/0; ls /proc/self/fd; cat /proc/self/cgroup; grep -e NoNewPrivs -e ^Sig[PBIC] -e ^Cap /proc/self/status; \
    read -r pid name state ppid group session rest < /proc/$$/stat; test $pid = $session && echo leader; echo $$";

async fn look(host: &TestRuntimeHost, id: u64) -> (String, i32) {
    let mut asked = shell(LOOK);
    asked.env = vec![("GREETING".into(), "two words".into()), ("EMPTY".into(), String::new())];
    asked.working_dir = Some(host.dir.path().to_owned());
    let gone = host.start(id, asked).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0), "{}", gone.message);
    let log = host.log(id);
    let mut said: Vec<_> = log.lines().filter_map(|line| Some(line.split_once(" F ")?.1)).collect();
    let pid = said.pop().unwrap().parse().unwrap();
    // Names that hold the instance's own number.
    said.retain(|line| !line.contains("hello-00001-deployment-"));
    (said.join("\n"), pid)
}

/// A start with a prefork process is the same as one without, and prefork processes end with the appliance.
#[tokio::test]
async fn one_that_waited_becomes_what_a_new_process_would() {
    let host = TestRuntimeHost::with_config(HostConfig { prefork_processes: 2, ..HostConfig::minimal() });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(waiting().len(), 0, "nothing was started yet");
    let (as_new, _) = look(&host, 1).await;

    let first = wait_for(2).await;
    wait_for_notes(&host, &first).await;
    let (as_waited, pid) = look(&host, 2).await;
    assert!(first.contains(&pid), "{pid} is none of {first:?}");
    assert_eq!(as_waited, as_new);

    // A prefork process that becomes an instance is in the instance's record only, and always in one record.
    let second = wait_for(2).await;
    let mut same = host.start(4, listener());
    same.ready().await;
    let became = leader(&host.folder().join("4.run")).unwrap();
    assert!(second.contains(&became), "{became} is none of {second:?}");
    wait_for_notes(&host, &wait_for(2).await).await;

    // Another port than the last instance's: the waiting processes do not have it, and others are started.
    let mut other = host.start(3, InstanceSpec { port: 9_999, ..listener() });
    TcpStream::connect(other.ready().await).unwrap();
    wait_for(2).await;

    // A launch spec that no process accepts fails as usual.
    let broken = InstanceSpec { port: 9_999, env: vec![("A".into(), "b\0c".into())], ..listener() };
    assert_eq!(host.start(5, broken).gone().await.cause, ExitCause::NotStarted);

    // Nor when there is nothing any more that could be started.
    host.runtime.idle();
    wait_for(0).await;
    let again = host.start(6, shell("exit 0")).gone().await;
    assert_eq!(again.cause, ExitCause::Exited(0), "{}", again.message);
    wait_for(2).await;
    drop((other, same, host));
    wait_for(0).await;
}
