//! The privileges of an instance on this host, for any author of its manifest, and what is hidden from it of the
//! appliance.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use kit::api::condition;
use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";

/// Other users and mounts are root's to give.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The program where any user may run it.
struct Program {
    folder: TempDir,
}

impl Program {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(BIN, folder.path().join("sluicegate")).unwrap();
        Self { folder }
    }

    /// A Service whose greeting is what the shell words of `look` print.
    fn looking(&self, name: &str, look: &str) -> Value {
        let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
        let mut manifest = with(service(name, "example.com/none", "x"), class, json!("process"));
        let binary = self.folder.path().join("sluicegate");
        let script = format!("export TARGET=\"$({look})\"; exec {} example hello", binary.display());
        manifest["spec"]["template"]["spec"]["containers"][0] = json!({
            "image": "example.com/none", "command": ["/bin/sh", "-c", script.replace('$', "$$")],
        });
        manifest
    }
}

fn as_user(mut manifest: Value, user: i64) -> Value {
    manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"] = json!({ "runAsUser": user });
    manifest
}

/// An appliance whose API listens on all addresses, and is asked by its Unix socket.
struct Public {
    appliance: Appliance,
    socket: PathBuf,
    _files: TempDir,
}

impl Public {
    fn start(flags: &[(&str, &str)]) -> Self {
        let files = TempDir::new().unwrap();
        let (tokens, socket) = (files.path().join("tokens"), files.path().join("api.sock"));
        std::fs::write(&tokens, "t0p,eve,1,\"\"\n").unwrap();
        let setup = ApplianceSetup::new(BIN)
            .flag("api", "0.0.0.0:0")
            .flag("api-tokens", &tokens.display().to_string())
            .flag("api-socket", &socket.display().to_string());
        let setup = flags.iter().fold(setup, |setup, (name, value)| setup.flag(name, value));
        Self { appliance: setup.start(), socket, _files: files }
    }

    /// Status and body of a call, `user` in place of the socket's owner if there is one.
    fn ask(&self, line: &str, body: &Value, user: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let who = if user.is_empty() { String::new() } else { format!("Impersonate-User: {user}\r\n") };
        let head = format!(
            "{line} HTTP/1.0\r\nHost: localhost\r\n{who}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn create(&self, path: &str, object: &Value) {
        let (status, answer) = self.ask(&format!("POST {path}"), object, "");
        assert_eq!(status, 201, "{answer}");
    }

    fn wait_reason(&self, revision: &str, reason: &str) -> Value {
        let path = format!("GET /apis/serving.knative.dev/v1/namespaces/default/revisions/{revision}");
        wait::until(TIMEOUT, &format!("{revision} to say {reason}"), || {
            let (_, found) = self.ask(&path, &Value::Null, "");
            let ready = condition(&found, "Ready")?.clone();
            (ready["reason"] == reason).then_some(ready)
        })
    }

    /// What the Service greets, once it does.
    fn greeting(&self, name: &str) -> String {
        wait::until(TIMEOUT, &format!("{name} to answer"), || {
            let answer = HttpCall::get("/").host(&format!("{name}.default.localhost")).send(self.appliance.http());
            (answer.status == 200).then(|| answer.text())
        })
    }
}

/// A RoleBinding of the policy's role to the service accounts of the namespace.
fn grant(policy: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": policy, "namespace": NAMESPACE },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": format!("sluicegate-instances-{policy}") },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
            "name": format!("system:serviceaccounts:{NAMESPACE}") }],
    })
}

/// Where others write manifests, an instance is its namespace's user, and neither its command nor its image makes it root.
#[test]
fn instance_of_a_public_api_is_its_namespaces_user() {
    if !is_root() {
        return eprintln!("skipped: only root runs programs as other users");
    }
    let program = Program::new();
    let mapped = format!("{IMAGE}={} example hello", program.folder.path().join("sluicegate").display());
    let public = Public::start(&[("image", &mapped)]);
    public.create(SERVICES, &program.looking("usual", "id -u; id -g; cat /etc/shadow 2>&1"));
    let said = public.greeting("usual");
    let lines: Vec<&str> = said.trim_start_matches("Hello ").lines().collect();
    let user: u32 = lines[0].parse().unwrap();
    assert!((1_900_000_000..2_147_483_648).contains(&u64::from(user)) && lines[1] == lines[0], "{said}");
    assert!(lines[2].contains("denied"), "{said}");

    public.create(SERVICES, &service("mapped", IMAGE, "x"));
    assert!(public.greeting("mapped").starts_with("Hello x"));
    public.create(SERVICES, &as_user(service("mapped-root", IMAGE, "x"), 0));
    public.wait_reason("mapped-root-00001", "InstancePolicyRequired");
    public.create(SERVICES, &as_user(program.looking("host", "id -u"), 1));
    public.wait_reason("host-00001", "InstancePolicyRequired");
    public.create(SERVICES, &as_user(program.looking("free", "id -u; id -g"), 1_234_567));
    assert!(public.greeting("free").starts_with(&format!("Hello 1234567\n{user} from")), "not root's group");
}

/// Root takes the verb `use`, which a namespace's admin cannot give himself.
#[test]
fn root_takes_a_policy_where_the_api_is_public() {
    if !is_root() {
        return eprintln!("skipped: only root runs programs as root");
    }
    let (program, public) = (Program::new(), Public::start(&[]));
    let admin = json!({
        "metadata": { "name": "eve" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve" }],
    });
    public.create(BINDINGS, &admin);
    let data = public.appliance.setup().data().display().to_string();
    let root = as_user(program.looking("root", &format!("id -u; cat {data}/api/own.token 2>&1")), 0);
    let made = wait::until(TIMEOUT, "the admin to be one", || {
        let (status, answer) = public.ask(&format!("POST {SERVICES}"), &root, "eve");
        (status == 201).then_some(answer)
    });
    assert_eq!(made["metadata"]["annotations"]["serving.knative.dev/creator"], "eve");
    let refused = public.wait_reason("root-00001", "InstancePolicyRequired");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("sluicegate-instances-root") && message.contains("\"default\""), "{message}");
    for name in ["root", "process", "host-user"] {
        let (status, answer) = public.ask(&format!("POST {BINDINGS}"), &grant(name), "eve");
        assert_eq!(status, 403, "{answer}");
    }
    public.create(BINDINGS, &grant("root"));
    let said = public.greeting("root");
    assert!(said.starts_with("Hello 0\n") && said.contains("No such file"), "{said}");
}

/// `deny` knows the operator's commands only; `allow-list` knows those whose service account may.
#[test]
fn operator_decides_about_commands_of_manifests() {
    let program = Program::new();
    let own = program.looking("own", "echo mine");
    let mut by_command = service("by-command", IMAGE, "x");
    by_command["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", "exit 3"]);
    let mut by_probe = service("by-probe", IMAGE, "x");
    by_probe["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["/bin/true"] } });
    for (rule, reason) in [("deny", "ProcessInstancesDenied"), ("allow-list", "InstancePolicyRequired")] {
        let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("process-instances", rule).start();
        let api = appliance.api();
        for (manifest, name) in [(&own, "own"), (&by_command, "by-command"), (&by_probe, "by-probe")] {
            api.create(manifest);
            wait_reason(api, &format!("{name}-00001"), reason);
        }
        api.create(&service("mapped", IMAGE, "x"));
        api.wait_ready("Service", NAMESPACE, "mapped", TIMEOUT);
        let granted = HttpCall::post(BINDINGS).json(&grant("process")).send(api.address());
        assert_eq!(granted.status, 201, "{granted}");
        if rule == "allow-list" {
            api.wait_ready("Service", NAMESPACE, "own", TIMEOUT);
            api.wait_ready("Service", NAMESPACE, "by-probe", TIMEOUT);
        }
    }
}

fn wait_reason(api: KitApi, revision: &str, reason: &str) {
    api.wait_for("Revision", NAMESPACE, revision, TIMEOUT, |found| {
        condition(found, "Ready").is_some_and(|ready| ready["reason"] == reason)
    });
}

/// Root as it is on a trusted host sees neither the data folder nor into the appliance's process.
#[test]
fn root_instance_sees_nothing_of_the_appliance() {
    if !is_root() {
        return eprintln!("skipped: without root there is no view of one's own");
    }
    let (program, files) = (Program::new(), TempDir::new().unwrap());
    let socket = files.path().join("api.sock").display().to_string();
    let setup = ApplianceSetup::new(BIN).flag("api-socket", &socket);
    let data = setup.data().display().to_string();
    let appliance = setup.start();
    let pid = appliance.pid();
    let look = format!(
        "id -u; find {data} -type f | grep -v termination | wc -l; test -S {socket} && echo socket; \
         for file in environ root fd/0 cwd; do head -c 1 /proc/{pid}/$file >/dev/null 2>&1 && echo $file; \
         ls /proc/{pid}/$file/ >/dev/null 2>&1 && echo $file; done; umount {data} 2>/dev/null && echo unmounted; \
         test -w $SLUICEGATE_TERMINATION_LOG && echo termination"
    );
    let mut manifest = program.looking("curious", &look);
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    container["readinessProbe"] = json!({ "exec": { "command": ["/bin/sh", "-c", format!("test ! -e {data}/api")] } });
    appliance.api().create(&manifest);
    appliance.api().wait_ready("Service", NAMESPACE, "curious", TIMEOUT);
    let said = HttpCall::get("/").host("curious.default.localhost").send(appliance.http()).text();
    assert!(said.starts_with("Hello 0\n0\ntermination from"), "{said}");
    assert!(std::path::Path::new(&data).join("api").is_dir(), "it is there");
}

/// Credentials, objects and events are accessible only to the appliance's user, and other users cannot list the instances.
#[test]
fn data_folder_is_for_its_owner() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    appliance.api().create(&service("hello", IMAGE, "x"));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let data = appliance.setup().data();
    for (name, others) in [("api", 0), ("log", 0), ("objects.redb", 0), ("takeover.sock", 0), ("instances", 0o011)] {
        let mode = std::fs::metadata(data.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, others, "{name} {mode:o}");
    }
}
