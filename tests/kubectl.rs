//! kubectl itself against the built binary: what people type has to work unchanged.
//!
//! Skipped, with a message, where there is no kubectl.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::process::{Command, Stdio};

use kit::{Appliance, PATIENCE, Setup, wait};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
const HELLO: &str = "\
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: hello
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/min-scale: \"1\"
    spec:
      containers:
      - image: test/hello
";
const MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: map
data:
  color: red
";

/// An appliance, and kubectl with a home of its own.
struct Desk {
    appliance: Appliance,
    home: TempDir,
}

/// How one command ended.
struct Said {
    good: bool,
    out: String,
    err: String,
}

impl Desk {
    /// `None` where there is no kubectl.
    fn open() -> Option<Self> {
        let known = Command::new("kubectl").args(["version", "--client"]).output();
        if !known.is_ok_and(|output| output.status.success()) {
            println!("skipped: there is no kubectl on this host");
            return None;
        }
        let appliance = Setup::new(BINARY).hello_image("test/hello").start();
        let home = TempDir::new().unwrap();
        let config = Command::new(BINARY)
            .args(["kubeconfig", "--api", &appliance.api().address().to_string()])
            .output()
            .unwrap();
        std::fs::write(home.path().join("config"), config.stdout).unwrap();
        Some(Self { appliance, home })
    }

    /// One command line, split at blanks, with `input` as what is typed.
    fn try_say(&self, line: &str, input: &str) -> Said {
        let mut child = Command::new("kubectl")
            .args(line.split_whitespace())
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path())
            .env("KUBE_EDITOR", "sed -i s/red/green/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { good: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// The same; panics if the command fails.
    fn type_in(&self, line: &str, input: &str) -> String {
        let said = self.try_say(line, input);
        assert!(said.good, "kubectl {line}: {}{}", said.out, said.err);
        said.out
    }

    fn say(&self, line: &str) -> String {
        self.type_in(line, "")
    }

    /// What the command prints holds all of `wanted`.
    fn expect(&self, line: &str, wanted: &[&str]) {
        let out = self.say(line);
        for one in wanted {
            assert!(out.contains(one), "kubectl {line}: no {one:?} in:\n{out}");
        }
    }
}

/// APP-28, APP-29, APP-33: every way to change an object.
#[test]
fn objects_are_made_changed_and_deleted_by_every_verb() {
    let Some(desk) = Desk::open() else { return };
    assert_eq!(desk.type_in("apply -f -", MAP), "configmap/map created\n");
    assert_eq!(desk.type_in("apply -f -", MAP), "configmap/map unchanged\n");
    let blue = MAP.replace("red", "blue");
    let diff = desk.try_say("diff -f -", &blue);
    assert!(diff.out.contains("+  color: blue"), "{}{}", diff.out, diff.err);
    assert_eq!(
        desk.type_in("apply -f - --dry-run=server", &blue),
        "configmap/map configured (server dry run)\n"
    );
    assert_eq!(desk.type_in("apply -f -", &blue), "configmap/map configured\n");
    assert_eq!(
        desk.type_in("apply -f - --server-side --force-conflicts", MAP),
        "configmap/map serverside-applied\n"
    );
    let conflict = desk.try_say("apply -f - --server-side --field-manager=other", &blue);
    assert!(!conflict.good && conflict.err.contains("conflict"), "{}", conflict.err);
    desk.expect("edit cm map", &["configmap/map edited"]);
    desk.expect("get cm map -o jsonpath={.data.color}", &["green"]);
    desk.say(r#"patch cm map -p {"data":{"size":"1"}}"#);
    desk.say(r#"patch cm map --type=merge -p {"data":{"size":"2"}}"#);
    desk.say(r#"patch cm map --type=json -p [{"op":"replace","path":"/data/size","value":"3"}]"#);
    desk.expect("get cm map -o jsonpath={.data.size}", &["3"]);
    desk.say("label cm map team=a");
    desk.expect("get cm -l team=a -o name", &["configmap/map"]);
    desk.say("annotate cm map note=x");
    desk.expect("get cm map -o yaml --show-managed-fields", &["note: x", "manager: kubectl"]);
    desk.type_in("replace -f -", MAP);
    assert!(!desk.try_say("create -f -", MAP).good, "it is there already");
    desk.expect("delete cm map", &["deleted"]);
    desk.say("create secret generic s --from-literal=a=b");
    desk.say("create sa robot");
    desk.say("create role reader --verb=get --resource=configmaps");
    desk.say("create rolebinding readers --role=reader --serviceaccount=default:robot");
    desk.expect("get secret,sa,role,rolebinding", &["secret/s", "robot", "reader", "readers"]);
    desk.expect("delete secret --all", &["\"s\" deleted"]);
}

/// A Service is applied, waited for, looked at, read the logs of, and deleted with its children.
#[test]
fn a_service_lives_and_ends_under_kubectl() {
    let Some(desk) = Desk::open() else { return };
    desk.type_in("apply -f -", HELLO);
    desk.say("wait --for=condition=Ready ksvc/hello --timeout=60s");
    desk.expect("get ksvc", &["NAME", "URL", "LATESTCREATED", "hello-00001", "True"]);
    desk.expect("describe ksvc hello", &["Latest Ready Revision Name:", "hello-00001", "Events:"]);
    desk.expect("get rev,rt,cfg", &["revision.serving.knative.dev/hello-00001", "configuration", "route"]);

    let pods = || desk.say("get pods -l serving.knative.dev/service=hello --no-headers");
    let running = wait::try_until(PATIENCE, || Some(pods()).filter(|pods| pods.contains("Running")));
    let running = running.unwrap_or_else(|| panic!("no pod runs: {}", pods()));
    assert!(running.contains("1/1"), "{running}");
    let pod = running.split_whitespace().next().unwrap();
    desk.expect(&format!("describe pod {pod}"), &["Controlled By:", "Revision/hello-00001", "test/hello"]);
    desk.say(&format!("logs {pod} --tail=5"));
    desk.say(&format!("logs {pod} -c user-container --timestamps"));
    assert!(!desk.try_say(&format!("logs {pod} --previous"), "").good, "it was never restarted");

    desk.say(&format!("delete pod {pod}"));
    let another = wait::try_until(PATIENCE, || {
        Some(pods()).filter(|pods| pods.contains("Running") && !pods.contains(pod))
    });
    assert!(another.is_some(), "the deleted instance has no successor: {}", pods());

    desk.expect("auth can-i create ksvc", &["yes"]);
    desk.expect("auth whoami", &["sluicegate-admin"]);
    desk.say("delete ksvc hello --cascade=foreground --timeout=60s");
    assert_eq!(desk.say("get cfg,rev,rt,pods -o name"), "");
    drop(desk.appliance);
}
