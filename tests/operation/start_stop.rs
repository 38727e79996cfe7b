//! How the binary starts, fails to start, and stops.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use kit::manifest::{NAMESPACE, broker, service};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, KitApi, TIMEOUT, TestUpstream, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

#[test]
fn the_ready_line_names_four_ports_that_answer() {
    let appliance = ApplianceSetup::new(BIN).start();
    let ports = appliance.ports();
    let all = [ports.http, ports.events, ports.api, ports.admin];
    let different: BTreeSet<_> = all.iter().map(SocketAddr::port).filter(|port| *port != 0).collect();
    assert_eq!(different.len(), 4, "{ports:?}");

    let status = |at, target: &str| HttpCall::get(target).send(at).status;
    assert_eq!(status(ports.http, "/"), 404);
    assert_eq!(HttpCall::post("/brokers/default/none").body("{}").send(ports.events).status, 404);
    for target in ["/healthz", "/readyz", "/version"] {
        assert_eq!(status(ports.api, target), 200, "api {target}");
    }
    for target in ["/healthz", "/readyz"] {
        assert_eq!(status(ports.admin, target), 200, "admin {target}");
    }
    let metrics = HttpCall::get("/metrics").send(ports.admin);
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("# TYPE sluicegate_"), "{metrics}");
}

#[test]
fn sigterm_ends_it_with_0() {
    assert_eq!(ApplianceSetup::new(BIN).start().terminate().code(), Some(0));
}

#[test]
fn sigterm_lets_requests_in_flight_finish() {
    let upstream = TestUpstream::start("one");
    let mut appliance = ApplianceSetup::new(BIN).route(HOST, upstream.address()).start();
    let http = appliance.http();
    let request = thread::spawn(move || HttpCall::get("/delay?ms=500").host(HOST).send(http).status);
    wait::until(TIMEOUT, "the request to arrive", || (upstream.requests() == 1).then_some(()));

    assert_eq!(appliance.terminate().code(), Some(0));
    assert_eq!(request.join().unwrap(), 200);
}

#[test]
fn a_second_sigint_does_not_wait_for_requests() {
    let upstream = TestUpstream::start("one");
    let mut appliance = ApplianceSetup::new(BIN).route(HOST, upstream.address()).start();
    let http = appliance.http();
    let request = thread::spawn(move || HttpCall::get("/delay?ms=20000").host(HOST).try_send(http));
    wait::until(TIMEOUT, "the request to arrive", || (upstream.requests() == 1).then_some(()));

    appliance.interrupt();
    wait::until(TIMEOUT, "the first signal to close the port", || {
        HttpConnection::try_open(http).is_err().then_some(())
    });
    assert!(appliance.is_running(), "the request in flight holds the first signal's end");
    appliance.interrupt();
    appliance.wait();
    assert!(request.join().unwrap().is_err(), "the request was cut, not awaited");
}

/// APP-39: objects, uids and versions are there again, after a tidy end and after none.
#[test]
fn a_second_start_on_the_same_data_finds_everything_as_it_was() {
    let mut appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&broker("kept"));
    let before = appliance.api().wait_ready("Broker", NAMESPACE, "kept", TIMEOUT);

    assert_eq!(appliance.terminate().code(), Some(0));
    appliance.restart_on_same_ports();
    let after_stop = appliance.api().get("Broker", NAMESPACE, "kept").expect("a stored object is still there");
    appliance.restart_on_same_ports();
    let after_kill = appliance.api().get("Broker", NAMESPACE, "kept").expect("a stored object is still there");
    for after in [&after_stop, &after_kill] {
        assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(after["metadata"]["creationTimestamp"], before["metadata"]["creationTimestamp"]);
        assert_eq!(after["spec"], before["spec"]);
    }

    let newer = appliance.api().create(&broker("newer"));
    assert!(version(&newer) > version(&before), "{newer:#}");
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[test]
fn a_folder_belongs_to_one_process_at_a_time() {
    let setup = ApplianceSetup::new(BIN);
    let mut first = setup.start();
    let refusal = setup.refused();
    assert!(!matches!(refusal.code, Some(0) | None), "{refusal}");
    assert!(refusal.stderr.contains(&*setup.data().to_string_lossy()), "names no folder: {refusal}");
    assert!(!refusal.stderr.contains("panicked"), "{refusal}");

    assert!(first.is_running());
    assert_eq!(HttpCall::get("/readyz").send(first.admin()).status, 200);
    first.kill();
    setup.start(); // what a dead process held is free
}

#[test]
fn a_bad_value_is_one_line_that_names_it_and_exit_2() {
    for (flag, value) in [
        ("workers", "many"),
        ("workers", "0"),
        ("http", "nonsense"),
        ("events", "127.0.0.1"),
        ("admin", "127.0.0.1:99999"),
        ("otlp", "http://"),
        ("route", "no-address.example.com"),
        ("route", "app.example.com=nowhere"),
        ("image", "no-command"),
        ("config", "/does/not/exist.toml"),
        ("manifests", "/does/not/exist.yaml"),
        ("nonsense", "1"),
    ] {
        let setup = ApplianceSetup::new(BIN).flag(flag, value);
        let refusal = setup.refused();
        assert_one_line(&refusal.stderr, flag);
        assert_eq!(refusal.code, Some(2), "--{flag} {value}: {refusal}");
        assert!(!setup.data().exists(), "--{flag} {value} left a data folder behind");
    }
}

fn assert_one_line(stderr: &str, named: &str) {
    let lines: Vec<_> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "one line wanted:\n{stderr}");
    assert!(lines[0].to_ascii_lowercase().contains(named), "{named} is not named: {stderr}");
}

#[test]
fn a_bad_key_or_value_in_the_config_file_is_named() {
    for (text, named) in [("nonsense = 1", "nonsense"), ("workers = \"many\"", "workers"), ("route = [\"x\"]", "route")]
    {
        let setup = ApplianceSetup::new(BIN);
        let file = setup.write_file("config.toml", text);
        let refusal = setup.clone().flag("config", &file.to_string_lossy()).refused();
        assert_eq!(refusal.code, Some(2), "{text}: {refusal}");
        assert_one_line(&refusal.stderr, named);
    }
}

#[test]
fn a_bad_value_in_the_environment_is_named() {
    let refusal = ApplianceSetup::new(BIN).env("SLUICEGATE_WORKERS", "many").refused();
    assert_eq!(refusal.code, Some(2), "{refusal}");
    assert_one_line(&refusal.stderr, "workers");
}

#[test]
fn a_variable_that_is_empty_is_none() {
    let setup = ApplianceSetup::new(BIN)
        .env("SLUICEGATE_HTTPS", "")
        .env("SLUICEGATE_ROUTE", "")
        .env("SLUICEGATE_LOG_BYTES", "");
    assert_eq!(setup.start().terminate().code(), Some(0));
}

#[test]
fn mistyped_flag_gets_suggestion_and_help() {
    let refusal = ApplianceSetup::new(BIN).flag("htps", "127.0.0.1:0").refused();
    assert_one_line(&refusal.stderr, "'--https'");
    assert!(refusal.stderr.contains("`sluicegate run --help`"), "{refusal}");
    let refusal = ApplianceSetup::new(BIN).flag("admin", "localhost:99999").refused();
    assert!(refusal.stderr.contains("like 127.0.0.1:8080"), "{refusal}");
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let setup = ApplianceSetup::new(BIN).hello_image("example.com/hello");
    let file = setup.write_file("config.toml", "domain = \"file.test\"\n").to_string_lossy().into_owned();
    let with_file = setup.flag("config", &file);
    for (setup, domain) in [
        (with_file.clone(), "file.test"),
        (with_file.clone().env("SLUICEGATE_DOMAIN", "env.test"), "env.test"),
        (with_file.env("SLUICEGATE_DOMAIN", "env.test").flag("domain", "flag.test"), "flag.test"),
    ] {
        let appliance = setup.start();
        assert_eq!(domain_in_use(appliance.api()), domain);
        appliance.api().delete("Service", NAMESPACE, "hello");
        appliance.api().wait_gone("Service", NAMESPACE, "hello", TIMEOUT);
    }
}

/// The end of the host in a Service's URL, without the port.
fn domain_in_use(api: KitApi) -> String {
    api.create(&service("hello", "example.com/hello", "domain"));
    let service = api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| service["status"]["url"].is_string());
    let url = service["status"]["url"].as_str().unwrap_or_default();
    let host = url.strip_prefix("http://hello.default.").unwrap_or(url);
    host.split(':').next().unwrap_or_default().to_owned()
}

/// APP-03: the README's own command names its program as a shell would find it, and instances look elsewhere.
#[test]
fn a_program_on_the_appliances_own_path_is_an_image() {
    let setup = ApplianceSetup::new(BIN);
    let folder = setup.data().parent().unwrap().join("programs");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(BIN, folder.join("greeter")).unwrap();
    let path = std::env::join_paths([folder.as_path(), Path::new("/usr/bin")]).unwrap();
    let setup = setup.flag("image", "example.com/hello=greeter example hello").env("PATH", path.to_str().unwrap());
    let appliance = setup.start();
    appliance.api().create(&service("hello", "example.com/hello", "World"));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let answer = HttpCall::get("/").host("hello.default.localhost").send(appliance.http());
    assert!(answer.text().starts_with("Hello World"), "{answer}");
}

/// APP-13: a server that takes connections and says nothing held the start up forever, and its end too.
#[test]
fn a_start_that_waits_for_a_silent_cluster_can_be_ended() {
    let cluster = TcpListener::bind("127.0.0.1:0").unwrap();
    let setup = ApplianceSetup::new(BIN);
    let file = setup.write_file(
        "kubeconfig",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            cluster.local_addr().unwrap()
        ),
    );
    let setup = setup.flag("kubeconfig", &file.to_string_lossy());
    let mut process = Killed(setup.command().stdout(Stdio::null()).spawn().unwrap());
    cluster.set_nonblocking(true).unwrap();
    let asked = wait::until(TIMEOUT, "the cluster to be asked", || cluster.accept().ok());
    kill_process(Pid::from_child(&process.0), Signal::TERM).unwrap();
    let ended = wait::until(TIMEOUT, "the end", || process.0.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
    drop(asked);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

/// Too few descriptors ended in a panic of a thread, or in an error that named no cause.
#[test]
fn too_few_descriptors_are_logged() {
    for few in ["12", "20", "40"] {
        let setup = ApplianceSetup::new(BIN);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n $0; exec \"$@\"", few, BIN]).args(setup.command().get_args());
        let ended = shell.output().unwrap();
        let reported = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{reported}");
        assert!(
            reported.starts_with("error: ") && reported.contains("ulimit -n") && reported.contains(few),
            "{reported}"
        );
    }
}

/// Other servers reopen their logs at it.
#[test]
fn signal_that_means_nothing_here_does_not_end_it() {
    let mut appliance = ApplianceSetup::new(BIN).start();
    let pid = i32::try_from(appliance.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::USR1).unwrap();
    assert_eq!(appliance.terminate().code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for flag in ["http", "events", "api", "admin"] {
        let refusal = ApplianceSetup::new(BIN).flag(flag, &address.to_string()).refused();
        assert!(!matches!(refusal.code, Some(0) | None), "--{flag}: {refusal}");
        assert!(refusal.stderr.contains(&address.to_string()), "--{flag}: {refusal}");
        assert!(!refusal.stderr.contains("panicked"), "--{flag}: {refusal}");
    }
}

/// `… --help | head -1` ended in a panic.
#[test]
fn closed_stdout_pipe_causes_no_panic() {
    for words in [["--help"].as_slice(), &["run", "--help"], &["version"], &["kubeconfig"]] {
        let run = |stdout: Stdio| Command::new(BIN).args(words).stdout(stdout).output().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = run(writer.into());
        assert_eq!((left.status.code(), left.stderr.len()), (Some(0), 0), "{words:?}");
        let full = run(File::options().write(true).open("/dev/full").unwrap().into());
        let reported = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(1), "{words:?}: {reported}");
        assert!(reported.starts_with("error: stdout") && reported.lines().count() == 1, "{words:?}: {reported}");
    }
}

#[test]
fn version_says_which_it_is() {
    let output = Command::new(BIN).arg("version").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(Command::new(BIN).arg("nonsense").output().unwrap().status.code(), Some(2));
}

/// APP-38: an API without credentials must not be reachable from other hosts.
#[test]
fn the_api_on_a_public_address_is_refused() {
    let refusal = ApplianceSetup::new(BIN).flag("api", "0.0.0.0:0").refused();
    assert!(!matches!(refusal.code, Some(0) | None), "{refusal}");
    assert!(refusal.stderr.contains("0.0.0.0"), "{refusal}");
}

/// What was written when the listener had an address of the other family was refused forever.
#[test]
fn a_listener_may_move_to_the_other_family_of_addresses() {
    if TcpListener::bind("[::1]:0").is_err() {
        return; // a host without IPv6
    }
    let mut appliance = ApplianceSetup::new(BIN).hello_image("example.com/hello").start();
    appliance.api().create(&service("hello", "example.com/hello", "World"));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(appliance.terminate().code(), Some(0));
    let moved = appliance.setup().clone().flag("http", "[::1]:0").start();
    for (namespace, slice) in [("knative-serving", "activator-service"), (NAMESPACE, "hello-00001-public")] {
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{slice}");
        wait::until(TIMEOUT, slice, || {
            let found = moved.api().send(HttpCall::get(&path)).json();
            (found["addressType"] == "IPv6" && found["endpoints"][0]["addresses"][0] == "::1").then_some(())
        });
    }
    assert!(!moved.stderr().contains("not written"), "{}", moved.stderr());
}

#[test]
fn it_runs_on_one_worker_and_on_more_than_there_are_cores() {
    let upstream = TestUpstream::start("one");
    for workers in ["1", "5"] {
        let mut appliance: Appliance =
            ApplianceSetup::new(BIN).flag("workers", workers).route(HOST, upstream.address()).start();
        for _ in 0..20 {
            assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200, "{workers} workers");
        }
        assert_eq!(appliance.terminate().code(), Some(0), "{workers} workers");
    }
}
