//! kubectl itself against the built binary: its commands must work unchanged.
//!
//! Skipped, with a message, where there is no kubectl. `KUBECTL` names another than the one in PATH. Commands that releases
//! before 1.28 do not have, or whose output differs there, are left out.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::process::{Command, Stdio};

use kit::{Appliance, ApplianceSetup, TIMEOUT, wait};
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

const ROUTE: &str = "\
apiVersion: serving.knative.dev/v1
kind: Route
metadata:
  name: hello
spec:
  traffic:
  - revisionName: hello-00001
    percent: 100
";

/// An appliance, and kubectl with a home of its own.
struct Session {
    appliance: Appliance,
    home: TempDir,
}

/// How one command ended.
struct Said {
    good: bool,
    out: String,
    err: String,
}

/// The first release with all the commands and flags of these tests.
const WITH_ALL: u32 = 28;

fn kubectl() -> Command {
    Command::new(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()))
}

/// Which release of 1 it is; `None` where there is none.
fn release() -> Option<u32> {
    let output = kubectl().args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    version["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse().ok()
}

impl Session {
    /// `None` where there is no kubectl from the release `oldest` on.
    fn open(oldest: u32) -> Option<Self> {
        let known = release();
        if known.is_none_or(|release| release < oldest) {
            println!("skipped: there is no kubectl from 1.{oldest} on, but {known:?}");
            return None;
        }
        let appliance = ApplianceSetup::new(BINARY).hello_image("test/hello").start();
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
        let mut child = kubectl()
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

/// APP-17, APP-28: what users do most, with a kubectl of any age.
#[test]
fn the_daily_work_is_done_with_any_kubectl() {
    let Some(session) = Session::open(0) else { return };
    assert_eq!(session.type_in("apply -f -", MAP), "configmap/map created\n");
    session.expect("edit cm map", &["configmap/map"]);
    let blue = MAP.replace("red", "blue");
    assert!(session.try_say("diff -f -", &blue).out.contains("+  color: blue"));
    assert_eq!(session.type_in("apply -f -", &blue), "configmap/map configured\n");
    session.say(r#"patch cm map -p {"data":{"size":"1"}}"#);
    session.say("label cm map team=a");
    session.expect("get cm -l team=a -o name", &["configmap/map"]);
    session.expect("explain ksvc.spec.template.spec", &["containerConcurrency"]);

    session.type_in("apply -f -", HELLO);
    session.say("wait --for=condition=Ready ksvc/hello --timeout=60s");
    session.expect("get ksvc", &["NAME", "URL", "LATESTCREATED", "hello-00001", "True"]);
    session.expect("describe ksvc hello", &["Latest Ready Revision Name:", "hello-00001", "Events:"]);
    session.say("logs -l serving.knative.dev/service=hello");
    session.expect("auth can-i create ksvc", &["yes"]);
    session.say("create role reader --verb=get --resource=configmaps");
    session.say("delete ksvc hello --timeout=60s");
    assert_eq!(session.say("get cfg,rev,rt -o name"), "");
    session.expect("delete cm map", &["deleted"]);
}

/// APP-28, APP-29, APP-33: every way to change an object.
#[test]
fn objects_are_made_changed_and_deleted_by_every_verb() {
    let Some(session) = Session::open(WITH_ALL) else { return };
    assert_eq!(session.type_in("apply -f -", MAP), "configmap/map created\n");
    assert_eq!(session.type_in("apply -f -", MAP), "configmap/map unchanged\n");
    let blue = MAP.replace("red", "blue");
    let diff = session.try_say("diff -f -", &blue);
    assert!(diff.out.contains("+  color: blue"), "{}{}", diff.out, diff.err);
    assert_eq!(session.type_in("apply -f - --dry-run=server", &blue), "configmap/map configured (server dry run)\n");
    assert_eq!(session.type_in("apply -f -", &blue), "configmap/map configured\n");
    assert_eq!(
        session.type_in("apply -f - --server-side --force-conflicts", MAP),
        "configmap/map serverside-applied\n"
    );
    let conflict = session.try_say("apply -f - --server-side --field-manager=other", &blue);
    assert!(!conflict.good && conflict.err.contains("conflict"), "{}", conflict.err);
    session.expect("edit cm map", &["configmap/map edited"]);
    session.expect("get cm map -o jsonpath={.data.color}", &["green"]);
    session.say(r#"patch cm map -p {"data":{"size":"1"}}"#);
    session.say(r#"patch cm map --type=merge -p {"data":{"size":"2"}}"#);
    session.say(r#"patch cm map --type=json -p [{"op":"replace","path":"/data/size","value":"3"}]"#);
    session.expect("get cm map -o jsonpath={.data.size}", &["3"]);
    let unfit = session.try_say(r#"patch cm map --type=json -p [{"op":"test","path":"/data/size","value":"4"}]"#, "");
    assert!(!unfit.good && unfit.err.contains("/data/size"), "it is told what did not fit: {}", unfit.err);
    session.say("label cm map team=a");
    session.expect("get cm -l team=a -o name", &["configmap/map"]);
    session.say("annotate cm map note=x");
    session.expect("get cm map -o yaml --show-managed-fields", &["note: x", "manager: kubectl"]);
    session.type_in("replace -f -", MAP);
    assert!(!session.try_say("create -f -", MAP).good, "it is there already");
    session.expect("delete cm map", &["deleted"]);
    session.say("create secret generic s --from-literal=a=b");
    session.say("create sa robot");
    let token = session.say("create token robot --audience eventing.knative.dev/broker/default/main --duration 1h");
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    session.say("create role reader --verb=get --resource=configmaps");
    session.say("create rolebinding readers --role=reader --serviceaccount=default:robot");
    session.expect("get secret,sa,role,rolebinding", &["secret/s", "robot", "reader", "readers"]);
    // kubectl writes roles in protobuf, and the core group's name is empty there.
    session.expect("auth can-i get configmaps --as=system:serviceaccount:default:robot", &["yes"]);
    session.expect("delete secret --all", &["\"s\" deleted"]);
}

/// A Service is applied, waited for, looked at, read the logs of, and deleted with its children.
#[test]
fn a_service_lives_and_ends_under_kubectl() {
    let Some(session) = Session::open(WITH_ALL) else { return };
    session.type_in("apply -f -", HELLO);
    session.say("wait --for=condition=Ready ksvc/hello --timeout=60s");
    session.expect("get ksvc", &["NAME", "URL", "LATESTCREATED", "hello-00001", "True"]);
    session.expect("describe ksvc hello", &["Latest Ready Revision Name:", "hello-00001", "Events:"]);
    session.expect("get rev,rt,cfg", &["revision.serving.knative.dev/hello-00001", "configuration", "route"]);

    let pods = || session.say("get pods -l serving.knative.dev/service=hello --no-headers");
    let running = wait::try_until(TIMEOUT, || Some(pods()).filter(|pods| pods.contains("Running")));
    let running = running.unwrap_or_else(|| panic!("no pod runs: {}", pods()));
    assert!(running.contains("1/1"), "{running}");
    let pod = running.split_whitespace().next().unwrap();
    session.expect(&format!("describe pod {pod}"), &["Controlled By:", "Revision/hello-00001", "test/hello"]);
    session.say(&format!("logs {pod} --tail=5"));
    session.say(&format!("logs {pod} -c user-container --timestamps"));
    assert!(!session.try_say(&format!("logs {pod} --previous"), "").good, "it was never restarted");

    session.say(&format!("delete pod {pod}"));
    let another =
        wait::try_until(TIMEOUT, || Some(pods()).filter(|pods| pods.contains("Running") && !pods.contains(pod)));
    assert!(another.is_some(), "the deleted instance has no successor: {}", pods());

    session.expect("auth can-i create ksvc", &["yes"]);
    session.expect("auth whoami", &["sluicegate-admin"]);
    session.say("delete ksvc hello --cascade=foreground --timeout=60s");
    assert_eq!(session.say("get cfg,rev,rt,pods -o name"), "");
    drop(session.appliance);
}

/// APP-17, APP-18, APP-36: what there is, what it means, and how it is shown.
#[test]
fn kinds_are_listed_explained_and_shown() {
    let Some(session) = Session::open(WITH_ALL) else { return };
    session.expect("version -o json", &["serverVersion"]);
    session.expect("explain eventpolicy.spec.from", &["FIELDS", "sub"]);
    session.expect("api-versions", &["serving.knative.dev/v1", "coordination.k8s.io/v1", "v1"]);
    session.expect(
        "api-resources --verbs=list,watch,patch -o wide",
        &["ksvc", "kservice", "brokers", "configmaps", "deletecollection", "subscriptions"],
    );
    session.expect(
        "api-resources --namespaced=false -o name",
        &["namespaces", "clusterroles.rbac.authorization.k8s.io", "customresourcedefinitions"],
    );
    session.expect(
        "explain ksvc.spec.template.spec.containerConcurrency",
        &["KIND:       Service", "FIELD: containerConcurrency <integer>"],
    );
    session.expect("explain trigger.spec --recursive", &["subscriber", "filter", "delivery"]);
    session.expect("explain configmap.data", &["VERSION:    v1", "FIELD: data"]);
    assert!(!session.try_say("explain ksvc.spec.nonsense", "").good);

    session.expect("get cm -A", &["NAMESPACE", "DATA", "config-features"]);
    session.expect("describe cm config-features -n knative-serving", &["_example", "Data"]);
    session.expect("get ns", &["STATUS", "Active", "knative-eventing"]);
    session.expect("describe ns default", &["Status:", "Active"]);
    session.expect("get lease -n knative-serving", &["HOLDER", "embedded"]);
    session.expect("get clusterrolebindings -o wide", &["ClusterRole/cluster-admin", "GROUPS", "system:masters"]);
    session.expect("get clusterroles", &["CREATED AT", "cluster-admin"]);
    let view = || session.say("describe clusterrole view");
    let reported = wait::try_until(TIMEOUT, || Some(view()).filter(|view| view.contains("configmaps")));
    assert!(reported.is_some(), "an aggregated role shows no rules: {}", view());
    session.expect("get crd -l duck.knative.dev/addressable=true", &["CREATED AT", "brokers.eventing.knative.dev"]);
    session.expect("get ns -o custom-columns=N:.metadata.name,P:.status.phase", &["N", "default", "Active"]);
    session
        .expect("get cm -n knative-serving --field-selector metadata.name=config-gc -o name", &["configmap/config-gc"]);
    session.expect("get --raw /healthz", &["ok"]);

    session.expect("auth can-i --list", &["*.*"]);
    let follower = "--as=system:serviceaccount:knative-serving:sluicegate";
    session.expect(&format!("auth can-i create revisions.serving.knative.dev {follower}"), &["yes"]);
    assert_eq!(session.try_say("auth can-i delete configmaps --as=nobody", "").out.trim(), "no");
    assert_eq!(session.say("create token sluicegate -n knative-serving").trim().split('.').count(), 3);
}

/// APP-29: an object that was applied by kubectl itself is applied by the server from then on, and our
/// controllers own what they write.
#[test]
fn an_object_moves_to_server_side_apply_and_controllers_own_theirs() {
    let Some(session) = Session::open(WITH_ALL) else { return };
    let sized = format!("{MAP}  size: \"1\"\n");
    session.type_in("apply -f -", &sized);
    session.type_in("apply -f - --server-side", &sized);
    let owners = session.say("get cm map -o yaml --show-managed-fields");
    assert!(owners.contains("operation: Apply") && !owners.contains("kubectl-client-side-apply"), "{owners}");
    let diff = session.try_say("diff --server-side -f -", MAP);
    assert!(diff.out.contains("-  size: \"1\""), "{}{}", diff.out, diff.err);
    session.type_in("apply -f - --server-side", MAP);
    assert_eq!(session.say("get cm map -o jsonpath={.data.size}"), "", "what is applied no more goes");
    session.say("wait --for=jsonpath={.data.color}=red cm/map --timeout=60s");
    session.say("label cm map team=a");
    session.say("label cm map team=b --overwrite");
    session.say("annotate cm map note=x");
    session.say("annotate cm map note-");
    session.expect("get cm map -o jsonpath={.metadata.labels.team}{.metadata.annotations.note}", &["b"]);
    session.say("delete cm map --wait=false");
    session.say("wait --for=delete cm/map --timeout=60s");
    let unknown =
        session.try_say("apply -f - --validate=strict", &HELLO.replace("template:", "nonsense: 1\n  template:"));
    assert!(!unknown.good && unknown.err.contains("unknown field \"spec.nonsense\""), "{}", unknown.err);

    session.type_in("apply -f -", HELLO);
    session.say("wait --for=condition=Ready ksvc/hello --timeout=60s");
    for what in ["ksvc", "route", "rev"] {
        let name = if what == "rev" { "hello-00001" } else { "hello" };
        let line = format!("get {what} {name} -o yaml --show-managed-fields");
        session.expect(&line, &["manager: controller", "subresource: status"]);
    }
    let conflict = session.try_say("apply -f - --server-side", ROUTE);
    assert!(!conflict.good && conflict.err.contains("conflict with \"controller\""), "{}", conflict.err);

    session.say(r#"patch ksvc hello --type=merge -p {"spec":{"template":{"metadata":{"labels":{"round":"two"}}}}}"#);
    session.say("wait --for=jsonpath={.status.latestReadyRevisionName}=hello-00002 ksvc/hello --timeout=60s");
    session.say("wait --for=condition=Ready rev -l serving.knative.dev/service=hello --timeout=60s");
    session.expect("get events --field-selector involvedObject.kind=Service", &["LAST SEEN", "service/hello", "Ready"]);
    session.expect("events", &["LAST SEEN", "Service/hello", "Ready"]);
    let of_one = session.say("events --for ksvc/hello");
    assert!(of_one.contains("Service/hello") && !of_one.contains("Revision/"), "{of_one}");
    session.expect("events --for revision/hello-00001", &["Revision/hello-00001"]);
    session.expect("get events.events.k8s.io", &["LAST SEEN", "hello"]);
    session.say("delete ksvc --all");
}
