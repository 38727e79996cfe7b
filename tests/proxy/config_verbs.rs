//! `sluicegate config show` and `config diff`: the objects of routes do what the routes do.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::path::Path;
use std::process::{Command, Output};

use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use serde_json::Value;

use crate::forward_auth::AuthService;
use crate::route_authentication::{ANN, basic};
use crate::tls::client::TlsAuthority;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn config(words: &[&str], arguments: &[String]) -> Output {
    Command::new(BIN).arg("config").args(words).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a client sees: status, the headers that filters change, and what the upstream saw.
fn seen(appliance: &Appliance, host: &str, call: &HttpCall) -> (u16, Vec<Option<String>>, Value) {
    let response = call.clone().host(host).send(appliance.http());
    let names =
        ["x-set", "x-upstream", "access-control-allow-origin", "content-encoding", "www-authenticate", "location"];
    let headers = names.iter().map(|name| response.header(name).map(str::to_owned)).collect();
    let mut body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    if let Some(headers) = body["headers"].as_object_mut() {
        headers.remove("traceparent"); // random
    }
    (response.status, headers, body)
}

/// Each route by flag, and by the objects that `config show` prints for it, in another appliance.
#[test]
fn objects_do_what_the_routes_do() {
    let (one, two, service) = (TestUpstream::start("one"), TestUpstream::start("two"), AuthService::start());
    let (folder, authority) = (tempfile::tempdir().unwrap(), TlsAuthority::new());
    let users = folder.path().join("users");
    std::fs::write(&users, ANN).unwrap();
    let files = authority.issue("upstream", "secure.test");
    let [chain, key] = files.split_once(',').map(<[&str; 2]>::from).unwrap().map(|file| std::fs::read(file).unwrap());
    let front = kit::tls::TlsFront::start(&chain, &key, &[b"http/1.1"], one.address());
    let (one, two) = (one.address(), two.address());
    let routes = [
        format!("plain.test={one}"),
        format!(
            "headers.test={one}?set-header=X-A:1&add-header=X-B:2&remove-header=X-Gone&set-response-header=X-Set:yes&remove-response-header=X-Upstream"
        ),
        format!("rewrite.test={one}?rewrite-prefix=/v1&rewrite-host=inner.test"),
        format!("denied.test={one}?deny=127.0.0.0/8"),
        format!("allowed.test={one}?allow=127.0.0.1"),
        format!("limited.test={one}?rate-limit=2/1h,by=header:X-Key"),
        format!("small.test={one}?max-body=4"),
        format!("cors.test={one}?cors-origin=https://a.test&cors-methods=GET"),
        format!("login.test={one}?basic-auth={}&basic-auth-realm=staff&basic-auth-user-header=X-User", users.display()),
        format!(
            "auth.test={one}?forward-auth=http://{}/verify&forward-auth-response-headers=X-User&forward-auth-headers=Cookie",
            service.address()
        ),
        format!("slow.test={one}?request-timeout=100ms"),
        format!("secure.test=https://{}?ca={}", front.address(), authority.own_file().display()),
        format!("*={two}"),
    ];
    let flags: Vec<String> = routes.iter().flat_map(|route| ["--route".to_owned(), route.clone()]).collect();
    let by_flags = routes.iter().fold(ApplianceSetup::new(BIN), |setup, route| setup.flag("route", route)).start();

    let http = closed_address();
    let shown = config(&["show", "--http", &http.to_string()], &flags);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let manifest = folder.path().join("objects.yaml");
    std::fs::write(&manifest, &shown.stdout).unwrap();
    let by_objects = ApplianceSetup::new(BIN)
        .flag("http", &http.to_string())
        .flag("manifests", &manifest.display().to_string())
        .start();
    let is_served = |host: &str| HttpCall::get("/").host(host).send(by_objects.http()).status != 404;
    for route in &routes {
        let host = route.split('=').next().unwrap();
        let host = if host == "*" { "any.test" } else { host };
        wait::until(TIMEOUT, host, || is_served(host).then_some(()));
    }

    let get = || HttpCall::get("/x?y=1");
    let login = basic("ann:open sesame");
    for (host, call) in [
        ("plain.test", get()),
        ("plain.test", HttpCall::post("/").body("abc")),
        ("headers.test", get().header("x-a", "0").header("x-b", "1").header("x-gone", "1")),
        ("rewrite.test", get()),
        ("denied.test", get()),
        ("allowed.test", get()),
        ("limited.test", get().header("x-key", "a")),
        ("limited.test", get().header("x-key", "a")),
        ("limited.test", get().header("x-key", "a")),
        ("small.test", HttpCall::post("/").body("1234")),
        ("small.test", HttpCall::post("/").body("12345")),
        ("cors.test", get().header("origin", "https://a.test")),
        ("cors.test", get().header("origin", "https://b.test")),
        ("login.test", get()),
        ("login.test", get().header("authorization", &login)),
        ("auth.test", get().header("x-user", "root")),
        ("auth.test", get().header("cookie", "ann").header("x-user", "root")),
        ("slow.test", HttpCall::get("/delay?ms=5000")),
        ("secure.test", get()),
        ("any.test", get()),
    ] {
        let wanted = seen(&by_flags, host, &call);
        // A policy may take effect later than its route.
        wait::until(TIMEOUT, &format!("{host}: {wanted:?}"), || {
            (seen(&by_objects, host, &call) == wanted).then_some(())
        });
    }
    diff_tells_changes(&by_objects, &manifest);
}

/// The appliance has what the file says, and then not.
fn diff_tells_changes(appliance: &Appliance, manifest: &Path) {
    let diff =
        |file: &Path| config(&["diff", "--api", &appliance.ports().api.to_string()], &[file.display().to_string()]);
    let same = diff(manifest);
    assert_eq!((text(&same.stdout), same.status.code()), ("0 added, 0 changed, 0 removed\n".to_owned(), Some(0)));
    let changed = std::fs::read_to_string(manifest).unwrap().replace("127.0.0.0/8", "10.0.0.0/8");
    let (before, after) = changed.split_once("kind: HTTPRoute\nmetadata:\n  name: any-host").unwrap();
    let renamed = manifest.with_file_name("changed.yaml");
    std::fs::write(&renamed, format!("{before}kind: HTTPRoute\nmetadata:\n  name: any-other{after}")).unwrap();
    let found = diff(&renamed);
    let wanted = "+ HTTPRoute default/any-other\n~ SecurityPolicy default/denied-test\n    \
                  spec.deny[0]: \"127.0.0.0/8\" -> \"10.0.0.0/8\"\n- HTTPRoute default/any-host\n\
                  1 added, 1 changed, 1 removed\n";
    assert_eq!((text(&found.stdout).as_str(), found.status.code()), (wanted, Some(1)), "{}", text(&found.stderr));
    let files = ["--from".to_owned(), manifest.display().to_string(), renamed.display().to_string()];
    let offline = config(&["diff"], &files);
    assert_eq!((text(&offline.stdout).as_str(), offline.status.code()), (wanted, Some(1)));
    let missing = config(&["diff"], &["/nowhere.yaml".to_owned()]);
    assert!(missing.status.code() == Some(2) && text(&missing.stderr).contains("/nowhere.yaml"));
}

#[test]
fn option_without_an_object_is_told() {
    let flags = ["--route", "a.test=localhost:1", "--route", "b.test=127.0.0.1:1?health-check=/"].map(str::to_owned);
    let shown = config(&["show"], &flags);
    let (out, err) = (text(&shown.stdout), text(&shown.stderr));
    assert_eq!(shown.status.code(), Some(1), "{err}");
    for note in ["route: a.test: it is left out", "route: b.test: no object has the option health-check=/"] {
        assert!(out.contains(&format!("# {note}")) && err.contains(note), "{out}{err}");
    }
    let refused = config(&["show"], &["--route".to_owned(), "a.test".to_owned()]);
    assert_eq!(refused.status.code(), Some(2));
}
