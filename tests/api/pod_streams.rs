//! `kubectl exec`, `attach`, `cp` and `port-forward` through the built binary: with kubectl itself, which is skipped with a message
//! if there is none, and with a WebSocket client.
#![allow(clippy::disallowed_methods, reason = "a test's own thread may wait")]
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use kit::manifest::{NAMESPACE, service, with};
use kit::registry::{RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{HandshakeError, Message, WebSocket};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const BUSYBOX: &str = "/bin/busybox";

/// An appliance with one instance.
struct Session {
    appliance: Appliance,
    pod: String,
    home: TempDir,
}

impl Session {
    /// The instance is a process.
    fn of_process() -> Self {
        Self::start(ApplianceSetup::new(BIN).hello_image(IMAGE).start(), service("hello", IMAGE, ""))
    }

    /// The same with another command.
    fn of_command(command: &[&str]) -> Self {
        let containers = json!([{ "image": IMAGE, "command": command }]);
        let service = with(service("hello", IMAGE, ""), "/spec/template/spec/containers", containers);
        Self::start(ApplianceSetup::new(BIN).hello_image(IMAGE).start(), service)
    }

    /// The instance is a container with busybox; `None` where containers cannot be tried.
    fn of_container() -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
            eprintln!("skipped: containers take root, and this test {BUSYBOX} (Debian's busybox-static)");
            return None;
        }
        let busybox = std::fs::read(BUSYBOX).unwrap();
        let names = ["busybox", "sh", "cat", "tar", "tty", "stty", "sleep", "id", "ls", "readlink"];
        let paths = names.map(|name| format!("bin/{name}"));
        let files: Vec<_> = paths.iter().map(|path| (path.as_str(), 0o755, busybox.as_slice())).collect();
        let script = "echo inside >/mark; exec /bin/busybox httpd -f -p 127.0.0.1:$PORT -h /";
        let config = json!({ "Entrypoint": ["/bin/busybox", "sh", "-c", script] }).to_string();
        let image = TestImage::new(vec![TestLayer::gzip(&TestLayer::files(&files))], &config);
        let registry = TestRegistry::start(RegistryLogin::None);
        registry.push("app", "v1", &image);
        let service = service("hello", &registry.reference("app", "v1"), "");
        Some(Self::start(ApplianceSetup::new(BIN).start(), service))
    }

    fn start(appliance: Appliance, service: Value) -> Self {
        let minimum = json!({ "annotations": { "autoscaling.knative.dev/min-scale": "1" } });
        let service = with(service, "/spec/template/metadata", minimum);
        appliance.api().create(&service);
        appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
        let pod = wait::until(TIMEOUT, "a ready Pod", || {
            let pods = appliance.api().list_selected("Pod", NAMESPACE, "serving.knative.dev/service=hello");
            let is_ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
            pods.iter().find(is_ready).and_then(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        });
        let home = TempDir::new().unwrap();
        let api = appliance.api().address().to_string();
        let config = Command::new(BIN).args(["kubeconfig", "--api", &api]).output().unwrap();
        std::fs::write(home.path().join("config"), config.stdout).unwrap();
        Self { appliance, pod, home }
    }

    fn kubectl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()));
        command.args(words).env("KUBECONFIG", self.home.path().join("config")).env("HOME", self.home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same in both protocols.
    fn kubectls(&self, words: &[&str]) -> [Command; 2] {
        [("true", "v5 over WebSocket"), ("false", "v4 over SPDY")].map(|(websockets, _)| {
            let mut command = self.kubectl(words);
            command
                .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
                .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
            command
        })
    }

    fn exec_url(&self, query: &str) -> String {
        let api = self.appliance.api().address();
        format!("ws://{api}/api/v1/namespaces/{NAMESPACE}/pods/{}/{query}", self.pod)
    }
}

fn has_kubectl() -> bool {
    let found = Command::new(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()))
        .arg("version")
        .arg("--client")
        .output();
    if found.is_err() {
        println!("skipped: there is no kubectl");
    }
    found.is_ok()
}

fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a process of this host has this word in its command line.
fn runs(word: &str) -> bool {
    let lines = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|one| one == word.as_bytes()))
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn output_errors_and_code_arrive(session: &Session) {
    let pod = session.pod.as_str();
    for command in session.kubectls(&["exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]) {
        let said = run(command, b"");
        assert_eq!((text(&said.stdout).as_str(), said.status.code()), ("out\n", Some(7)), "{}", text(&said.stderr));
        assert!(text(&said.stderr).starts_with("err\n"), "{}", text(&said.stderr));
    }
    let large = vec![b'x'; 1 << 20];
    for command in session.kubectls(&["exec", "-i", pod, "--", "cat"]) {
        let said = run(command, &large);
        assert!(said.stdout == large && said.status.success(), "{} bytes, {}", said.stdout.len(), text(&said.stderr));
    }
    for command in session.kubectls(&["exec", pod, "--", "/no/such/program"]) {
        assert_eq!(run(command, b"").status.code(), Some(127));
    }
}

#[test]
fn exec_in_process_returns_output_and_code() {
    if has_kubectl() {
        output_errors_and_code_arrive(&Session::of_process());
    }
}

/// The command sees the container's files, processes and user.
#[test]
fn exec_in_container_runs_inside_it() {
    let Some(session) = has_kubectl().then(Session::of_container).flatten() else { return };
    output_errors_and_code_arrive(&session);
    let script = "cat /mark; cat /proc/1/comm; id -u; ls /proc/self/fd | tr '\\n' ' '";
    let said = run(session.kubectl(&["exec", &session.pod, "--", "sh", "-c", script]), b"");
    assert!(text(&said.stdout).starts_with("inside\nbusybox\n0\n0 1 2 3"), "{said:?}");
}

/// A file goes in and comes out again.
#[test]
fn cp_copies_into_container_and_back() {
    let Some(session) = has_kubectl().then(Session::of_container).flatten() else { return };
    let (there, back) = (session.home.path().join("there"), session.home.path().join("back"));
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    std::fs::write(&there, &content).unwrap();
    let remote = format!("{}:/copy", session.pod);
    for words in [["cp", there.to_str().unwrap(), &remote], ["cp", &remote, back.to_str().unwrap()]] {
        let said = run(session.kubectl(&words), b"");
        assert!(said.status.success(), "{words:?}: {}", text(&said.stderr));
    }
    assert!(std::fs::read(&back).unwrap() == content);
}

/// The next frame's channel and payload that is not empty.
fn receive(socket: &mut WebSocket<TcpStream>) -> Option<(u8, Vec<u8>)> {
    loop {
        match socket.read() {
            Ok(Message::Binary(bytes)) if bytes.len() > 1 => return Some((bytes[0], bytes[1..].to_vec())),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

fn open(session: &Session, query: &str, protocol: &'static str) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect(session.appliance.api().address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut request = session.exec_url(query).into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse().unwrap());
    let (socket, response) = tungstenite::client(request, stream).unwrap();
    assert_eq!(response.headers()["Sec-WebSocket-Protocol"], protocol);
    socket
}

/// The status and the message of a request for a stream that `user` may not have.
fn refusal(session: &Session, query: &str, user: Option<&str>) -> (u16, String) {
    let stream = TcpStream::connect(session.appliance.api().address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut request = session.exec_url(query).into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "v5.channel.k8s.io".parse().unwrap());
    if let Some(user) = user {
        request.headers_mut().insert("Impersonate-User", user.parse().unwrap());
    }
    match tungstenite::client(request, stream) {
        Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            (answer.status().as_u16(), text(answer.body().as_deref().unwrap_or_default()))
        }
        other => panic!("no refusal: {:?}", other.map(|_| ())),
    }
}

/// All of stdout until the status, and the status.
fn finish(socket: &mut WebSocket<TcpStream>) -> (String, Value) {
    let mut out = Vec::new();
    loop {
        match receive(socket).expect("a status before the end") {
            (1, bytes) => out.extend(bytes),
            (3, status) => return (text(&out), serde_json::from_slice(&status).unwrap()),
            (channel, bytes) => panic!("channel {channel}: {}", text(&bytes)),
        }
    }
}

/// v5 closes the input; v4 cannot, and ends with the command.
#[test]
fn websocket_channels_carry_input_output_and_status() {
    let session = Session::of_process();
    let mut socket = open(&session, "exec?command=cat&stdin=true&stdout=true&stderr=true", "v5.channel.k8s.io");
    socket.send(Message::Binary(b"\0hello".to_vec().into())).unwrap();
    socket.send(Message::Binary(vec![255, 0].into())).unwrap();
    let (out, status) = finish(&mut socket);
    assert_eq!((out.as_str(), &status["status"]), ("hello", &json!("Success")));

    let query = "exec?command=sh&command=-c&command=read+line%3B+echo+$line%3B+exit+3&stdin=true&stdout=true";
    let mut socket = open(&session, query, "v4.channel.k8s.io");
    socket.send(Message::Binary(b"\0word\n".to_vec().into())).unwrap();
    let (out, status) = finish(&mut socket);
    assert_eq!((out.as_str(), &status["reason"]), ("word\n", &json!("NonZeroExitCode")));
    assert_eq!(status["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "3" }));
}

/// The terminal has the client's size, is the container's own, and Ctrl-C reaches the program in front.
#[test]
fn terminal_has_size_and_interrupts() {
    let Some(session) = Session::of_container() else { return };
    let mut socket = open(&session, "exec?command=sh&stdin=true&stdout=true&tty=true", "v5.channel.k8s.io");
    socket.send(Message::Binary(b"\x04{\"Width\":91,\"Height\":17}".to_vec().into())).unwrap();
    let mut seen = String::new();
    let mut until = |socket: &mut WebSocket<TcpStream>, wanted: &str| {
        while !seen.contains(wanted) {
            let (channel, bytes) = receive(socket).unwrap_or_else(|| panic!("no {wanted:?} in {seen}"));
            assert_eq!(channel, 1);
            seen.push_str(&text(&bytes));
        }
        seen.clear();
    };
    socket.send(Message::Binary(b"\0sleep 0.2; stty size; tty\n".to_vec().into())).unwrap();
    until(&mut socket, "17 91\r\n/dev/pts/0");
    socket.send(Message::Binary(b"\0echo wait$((1+1)); sleep 1000\n".to_vec().into())).unwrap();
    until(&mut socket, "wait2");
    std::thread::sleep(std::time::Duration::from_millis(200)); // the shell starts the program
    socket.send(Message::Binary(b"\0\x03".to_vec().into())).unwrap();
    socket.send(Message::Binary(b"\0echo after$((1+2)); exit 5\n".to_vec().into())).unwrap();
    until(&mut socket, "after3");
    let status = loop {
        if let (3, status) = receive(&mut socket).unwrap() {
            break serde_json::from_slice::<Value>(&status).unwrap();
        }
    };
    assert_eq!(status["details"]["causes"][0]["message"], "5");
}

/// A client that is killed leaves no process, not even one in the background.
#[test]
fn killed_client_leaves_no_process() {
    if !has_kubectl() {
        return;
    }
    for (at, session) in [Some(Session::of_process()), Session::of_container()].into_iter().flatten().enumerate() {
        let [one, other] = [0, 1].map(|number| format!("98765{}{at}{number}", std::process::id() % 1000));
        let script = format!("sleep {one} & sleep {other}");
        for command in session.kubectls(&["exec", "-i", &session.pod, "--", "sh", "-c", &script]) {
            let mut command = command;
            let client = command.spawn().unwrap();
            wait::until(TIMEOUT, "the command to run", || (runs(&one) && runs(&other)).then_some(()));
            kill(client);
            wait::until(TIMEOUT, "the command to end", || (!runs(&one) && !runs(&other)).then_some(()));
        }
    }
}

#[test]
fn end_of_instance_is_reported_with_status() {
    for session in [Some(Session::of_process()), Session::of_container()].into_iter().flatten() {
        let query = "exec?command=sh&command=-c&command=echo+up%3B+sleep+1000&stdout=true";
        let mut socket = open(&session, query, "v5.channel.k8s.io");
        assert_eq!(receive(&mut socket), Some((1, b"up\n".to_vec())));
        session.appliance.api().delete("Pod", NAMESPACE, &session.pod);
        let (_, status) = finish(&mut socket);
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains("instance ended"), "{status}");
    }
}

#[test]
fn attach_follows_output_and_refuses_input() {
    if !has_kubectl() {
        return;
    }
    let script = format!("while sleep 0.1; do echo tick; echo tock >&2; done & exec {BIN} example hello");
    let session = Session::of_command(&["/bin/sh", "-c", &script]);
    let refused = run(session.kubectl(&["attach", "-i", &session.pod]), b"");
    assert!(text(&refused.stderr).contains("has no stdin"), "{}", text(&refused.stderr));
    for mut command in session.kubectls(&["attach", &session.pod]) {
        let mut client = command.spawn().unwrap();
        for (output, wanted) in [
            (&mut client.stdout.take().unwrap() as &mut dyn Read, "tick\n"),
            (&mut client.stderr.take().unwrap(), "tock\n"),
        ] {
            let mut seen = String::new();
            while !seen.contains(wanted) {
                let mut bytes = [0; 64];
                let count = output.read(&mut bytes).unwrap();
                assert!(count > 0, "kubectl ended: {seen}");
                seen.push_str(&text(&bytes[..count]));
            }
            assert!(!seen.contains("listening"), "{seen}"); // what was written before is not shown
        }
        kill(client);
    }
}

/// A port of the container leads to the instance, and other ports of the host are refused.
#[test]
fn port_forward_reaches_only_the_instance() {
    if !has_kubectl() {
        return;
    }
    let session = Session::of_process();
    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for mut command in session.kubectls(&["port-forward", &session.pod, ":8080", &format!(":{other}")]) {
        let mut client = command.spawn().unwrap();
        let mut reported = String::new();
        let mut out = client.stdout.take().unwrap();
        while reported.matches("Forwarding from 127.0.0.1").count() < 2 {
            let mut bytes = [0; 256];
            let count = out.read(&mut bytes).unwrap();
            assert!(count > 0, "kubectl ended: {reported}");
            reported.push_str(&text(&bytes[..count]));
        }
        let ports: Vec<u16> = reported
            .lines()
            .filter_map(|line| line.strip_prefix("Forwarding from 127.0.0.1:")?.split(' ').next()?.parse().ok())
            .collect();
        for _ in 0..3 {
            let answer = HttpCall::get("/").send(([127, 0, 0, 1], ports[0]).into());
            assert_eq!(answer.status, 200);
        }
        let mut refused = TcpStream::connect(("127.0.0.1", ports[1])).unwrap();
        refused.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = refused.write_all(b"GET / HTTP/1.1\r\n\r\n");
        assert!(matches!(refused.read(&mut [0; 16]), Ok(0) | Err(_)));
        let _ = client.kill();
        let said = client.wait_with_output().unwrap();
        assert!(text(&said.stderr).contains("has the port"), "{}", text(&said.stderr));
    }
}

/// A command of a client's is one that the operator did not map.
#[test]
fn exec_in_process_under_deny_is_refused() {
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("process-instances", "deny");
    let session = Session::start(setup.start(), service("hello", IMAGE, ""));
    let (code, message) = refusal(&session, "exec?command=ls&stdout=true", None);
    assert!(code == 403 && message.contains("--process-instances deny"), "{code} {message}");
}

/// The right to `exec` is not enough for a command on the host.
#[test]
fn exec_in_process_under_allow_list_needs_policy() {
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("process-instances", "allow-list");
    let session = Session::start(setup.start(), service("hello", IMAGE, ""));
    let rules = json!([{ "apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"] }]);
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": { "name": "exec", "namespace": NAMESPACE }, "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": { "name": "exec", "namespace": NAMESPACE },
        "roleRef": { "apiGroup": rbac, "kind": "Role", "name": "exec" },
        "subjects": [{ "apiGroup": rbac, "kind": "User", "name": "dev" }],
    });
    for (resource, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/{rbac}/v1/namespaces/{NAMESPACE}/{resource}");
        let made = HttpCall::post(&path).json(&object).send(session.appliance.api().address());
        assert_eq!(made.status, 201, "{made}");
    }
    let query = "exec?command=echo&command=mine&stdout=true";
    let (code, message) = refusal(&session, query, Some("dev"));
    assert!(code == 403 && message.contains("instancepolicies"), "{code} {message}");
    let (out, _) = finish(&mut open(&session, query, "v5.channel.k8s.io"));
    assert_eq!(out, "mine\n"); // an administrator may use all policies
}

/// As upstream words it.
#[test]
fn wrong_requests_get_statuses() {
    let session = Session::of_process();
    let (api, pod) = (session.appliance.api().address(), session.pod.as_str());
    let get = |path: &str| {
        let answer = HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{path}")).send(api);
        let status: Value = serde_json::from_str(&answer.text()).unwrap();
        (answer.status, status["message"].as_str().unwrap_or_default().to_owned())
    };
    for (path, code, wanted) in [
        ("none/exec?command=ls&stdout=true".to_owned(), 404, "pods \"none\" not found".to_owned()),
        (
            format!("{pod}/exec?command=ls&stdout=true&container=no"),
            400,
            format!("container no is not valid for pod {pod}"),
        ),
        (format!("{pod}/exec?command=ls&stdout=true"), 400, "Upgrade request required".to_owned()),
    ] {
        assert_eq!(get(&path), (code, wanted));
    }
    if !has_kubectl() {
        return;
    }
    let can = run(session.kubectl(&["auth", "can-i", "create", "pods/exec"]), b"");
    assert_eq!(text(&can.stdout), "yes\n", "{}", text(&can.stderr));
}
