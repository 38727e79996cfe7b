//! The same with a real browser: a page of another port tries everything that a page can, and a name that DNS rebinding points
//! here is opened. Skipped with a message where Chromium is missing.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use kit::manifest::NAMESPACE;
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{ApplianceSetup, HttpRequest, TIMEOUT, wait};
use serde_json::Value;
use tempfile::TempDir;

use super::{BIN, rejections, with_one_event};

/// As Debian installs it.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Tries all of it, and reports what the page saw of it.
const PAGE: &str = r#"<!doctype html><title>a page</title><body><script>
const api = "http://API", admin = "http://ADMIN";
const maps = api + "/api/v1/namespaces/default/configmaps";
const replay = admin + "/debug/events/replay?trigger=default/t&from=earliest";
const map = name => JSON.stringify({apiVersion: "v1", kind: "ConfigMap", metadata: {name}});
const send = (url, init) => fetch(url, init).then(() => "sent", why => String(why));
const loads = (tag, url) => new Promise(resolve => {
  const element = document.createElement(tag);
  element.onload = () => resolve("load");
  element.onerror = () => resolve("error");
  element.src = url;
  document.body.append(element);
});
const submits = (url, enctype, name, value) => new Promise(resolve => {
  const frame = document.createElement("iframe"), form = document.createElement("form");
  frame.name = "frame" + Math.random();
  document.body.append(frame, form);
  Object.assign(form, {method: "POST", action: url, enctype, target: frame.name});
  const input = document.createElement("input");
  Object.assign(input, {name, value});
  form.append(input);
  frame.onload = () => resolve("load");
  form.submit();
});
const opens = (make, event) => new Promise(resolve => {
  const source = make();
  source[event] = () => resolve("open");
  source.onerror = () => resolve("error");
});
const text = "text/plain";
const tries = {
  blob: () => send(maps, {method: "POST", mode: "no-cors", body: new Blob([map("blob")])}),
  typed: () => send(maps, {method: "POST", mode: "no-cors", body: new Blob([map("typed")], {type: "application/json"})}),
  text: () => send(maps, {method: "POST", mode: "no-cors", headers: {"Content-Type": text}, body: map("text")}),
  json: () => send(maps, {method: "POST", headers: {"Content-Type": "application/json"}, body: map("json")}),
  quiet: () => send(maps, {method: "POST", mode: "no-cors", referrerPolicy: "no-referrer", body: new Blob([map("quiet")])}),
  beacon: () => String(navigator.sendBeacon(maps, new Blob([map("beacon")]))),
  form: () => submits(maps, text, map("form").slice(0, -1) + ',"x":"', '"}'),
  encoded: () => submits(maps, "application/x-www-form-urlencoded", "a", map("encoded")),
  remove: () => send(maps + "/kube-root-ca.crt", {method: "DELETE"}),
  read: () => send(api + "/api/v1/secrets"),
  image: () => loads("img", api + "/api/v1/secrets"),
  script: () => loads("script", api + "/api/v1/secrets"),
  stream: () => opens(() => new EventSource(maps + "?watch=true"), "onopen"),
  socket: () => opens(() => new WebSocket(maps.replace("http", "ws") + "?watch=true"), "onopen"),
  replay: () => send(replay, {method: "POST", mode: "no-cors"}),
  replayed: () => submits(replay, text, "a", "b"),
  letters: () => loads("img", admin + "/debug/events/dead-letters"),
  metrics: () => send(admin + "/metrics"),
};
const all = Object.entries(tries).map(async ([name, attempt]) => [name, await attempt()]);
Promise.all(all).then(seen => fetch("/seen", {method: "POST", body: JSON.stringify(Object.fromEntries(seen))}));
</script>"#;

struct Browser {
    child: Child,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Chromium with a profile of its own; `None` where it is not installed.
fn chromium(arguments: &[&str], profile: &Path) -> Option<Command> {
    if !Path::new(CHROMIUM).exists() {
        eprintln!("skipped: there is no {CHROMIUM}");
        return None;
    }
    let mut command = Command::new(CHROMIUM);
    let quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ];
    command.args(quiet).arg(format!("--user-data-dir={}", profile.display())).args(arguments);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Some(command)
}

/// Serves the page; what it reports is in the second.
fn page(api: SocketAddr, admin: SocketAddr) -> (TestServer, Arc<Mutex<Option<Value>>>) {
    let seen = Arc::<Mutex<Option<Value>>>::default();
    let html = PAGE.replace("API", &api.to_string()).replace("ADMIN", &admin.to_string());
    let reported = Arc::clone(&seen);
    let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
        move |request: HttpRequest| {
            if request.path() == "/seen" {
                *reported.lock().unwrap() = serde_json::from_slice(&request.body).ok();
            }
            let answer = ReceivedMessage::new(200).header("Content-Type", "text/html").body(html.as_bytes());
            async move { HandlerReply::Send(answer) }
        }
    });
    (server, seen)
}

#[test]
fn page_of_another_port_changes_and_reads_nothing() {
    let profile = TempDir::new().unwrap();
    let (appliance, sink) = with_one_event();
    let (server, seen) = page(appliance.api().address(), appliance.admin());
    let url = format!("http://{}/", server.address());
    let Some(mut command) = chromium(&["--remote-debugging-port=0", &url], profile.path()) else { return };
    let before = appliance.api().list("ConfigMap", NAMESPACE).len();
    let browser = Browser { child: command.stdout(Stdio::null()).spawn().unwrap(), _profile: profile };
    let seen = wait::until(TIMEOUT, "the page's report", || seen.lock().unwrap().clone());
    drop(browser);

    let api = ["host", "origin", "fetch-site", "content-type"].map(|reason| rejections(&appliance, "api", reason));
    let admin = ["origin", "fetch-site"].map(|reason| rejections(&appliance, "admin", reason));
    assert!(api[1] >= 9 && api[2] >= 2, "the browser sent what it was told to: {api:?}, {seen:#}");
    assert!(admin[0] >= 3 && admin[1] >= 1, "{admin:?}, {seen:#}");
    for unread in ["json", "remove", "read", "metrics"] {
        assert!(seen[unread].as_str().unwrap().contains("TypeError"), "{unread}: {seen:#}");
    }
    for unopened in ["image", "script", "stream", "socket", "letters"] {
        assert_eq!(seen[unopened], "error", "{unopened}: {seen:#}");
    }
    assert_eq!(appliance.api().list("ConfigMap", NAMESPACE).len(), before, "{seen:#}");
    assert_eq!(sink.received().len(), 1, "nothing was sent again");
}

#[test]
fn name_that_dns_rebinding_leads_here_reads_nothing() {
    let appliance = ApplianceSetup::new(BIN).start();
    let shown = |host: &str| {
        let profile = TempDir::new().unwrap();
        let url = format!("http://{host}:{}/api/v1/namespaces", appliance.api().address().port());
        let arguments = ["--host-resolver-rules=MAP evil.example 127.0.0.1", "--dump-dom", &url];
        let output = chromium(&arguments, profile.path())?.output().unwrap();
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(own) = shown("127.0.0.1") else { return };
    assert!(own.contains("NamespaceList"), "an address that a person typed is answered: {own}");
    let rebound = shown("evil.example").unwrap();
    assert!(rebound.contains("MisdirectedRequest") && !rebound.contains("NamespaceList"), "{rebound}");
    assert!(rejections(&appliance, "api", "host") >= 1);
}
