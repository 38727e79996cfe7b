//! The operator's ConfigMaps and their effect on Services: defaults, limits, domains, rollouts.

use kit::api::condition;
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";

fn configure(api: KitApi, map: &str, data: Value) {
    api.patch("ConfigMap", "knative-serving", map, &json!({ "data": data }));
}

/// SRV-REV-03: changed defaults apply to new objects, limits reject them, and existing objects are unchanged.
#[test]
fn changed_defaults_are_for_those_who_come_later() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("before", IMAGE, "x"));
    api.wait_ready("Service", NAMESPACE, "before", TIMEOUT);
    let defaults = json!({
        "revision-timeout-seconds": "20", "max-revision-timeout-seconds": "30", "container-concurrency": "3",
        "revision-response-start-timeout-seconds": "20", "revision-cpu-request": "50m",
    });
    configure(api, "config-defaults", defaults);
    let after = api.create(&service("after", IMAGE, "x"));
    let spec = &after["spec"]["template"]["spec"];
    assert_eq!((&spec["timeoutSeconds"], &spec["containerConcurrency"]), (&json!(20), &json!(3)));
    assert_eq!(spec["containers"][0]["resources"]["requests"]["cpu"], "50m");
    let old = api.get("Revision", NAMESPACE, "before-00001").unwrap();
    assert_eq!((&old["spec"]["timeoutSeconds"], &old["spec"]["containerConcurrency"]), (&json!(300), &json!(0)));
    api.wait_ready("Service", NAMESPACE, "after", TIMEOUT);

    let late = with(service("late", IMAGE, "x"), "/spec/template/spec/timeoutSeconds", json!(31));
    let refused = api.try_create(&late);
    assert!((400..500).contains(&refused.status) && refused.text().contains("timeoutSeconds"), "{refused}");
    let none = "/spec/template/metadata/annotations/autoscaling.knative.dev~1initial-scale";
    let refused = api.try_create(&with(service("late", IMAGE, "x"), none, json!("0")));
    assert!((400..500).contains(&refused.status), "{refused}");
    configure(api, "config-autoscaler", json!({ "allow-zero-initial-scale": "true" }));
    assert_eq!(api.try_create(&with(service("late", IMAGE, "x"), none, json!("0"))).status, 201);
}

/// RT-PROBE-08: a start may take as long as `config-deployment` says, unless its template says something else.
#[test]
fn a_start_may_take_as_long_as_the_operator_says() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    configure(api, "config-deployment", json!({ "progress-deadline": "1s" }));
    let never_ready = |name: &str| {
        let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
        let mut manifest = with(service(name, IMAGE, ""), class, json!("process"));
        manifest["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["/bin/sleep", "600"]);
        manifest
    };
    let deadline = "/spec/template/metadata/annotations/serving.knative.dev~1progress-deadline";
    api.create(&with(never_ready("patient"), deadline, json!("600s")));
    api.create(&never_ready("hasty"));
    let revision = api.wait_for("Revision", NAMESPACE, "hasty-00001", TIMEOUT, |revision| {
        condition(revision, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    let available = condition(&revision, "ResourcesAvailable").expect("the condition that failed");
    assert_eq!(available["reason"], "ProgressDeadlineExceeded", "{available}");
    let patient = api.get("Revision", NAMESPACE, "patient-00001").unwrap();
    assert_eq!(condition(&patient, "Ready").expect("its verdict")["status"], "Unknown", "{patient:#}");
}

/// SRV-REQ-06: the domain of a Route follows its labels and the operator's templates, and its URL answers.
#[test]
fn a_configured_domain_is_where_the_service_answers() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    configure(api, "config-domain", json!({ "prod.example.com": "selector:\n  tier: prod\n" }));
    configure(api, "config-network", json!({ "domain-template": "{{.Name}}-{{.Namespace}}.{{.Domain}}" }));
    api.create(&with(service("hello", IMAGE, "x"), "/metadata/labels", json!({ "tier": "prod" })));
    api.create(&service("other", IMAGE, "y"));
    for (name, host) in [("hello", "hello-default.prod.example.com"), ("other", "other-default.localhost")] {
        let ready = api.wait_ready("Service", NAMESPACE, name, TIMEOUT);
        let url = ready["status"]["url"].as_str().unwrap_or_default();
        assert!(url.starts_with(&format!("http://{host}")), "{url}");
        assert_eq!(HttpCall::get("/").host(host).send(appliance.http()).status, 200, "{host}");
    }
}

/// X-RTE-10, X-RTE-11: with a duration the new version begins with one percent and ends with all.
#[test]
fn a_rollout_with_a_duration_moves_by_steps() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let duration = "/metadata/annotations/serving.knative.dev~1rollout-duration";
    api.create(&with(service("hello", IMAGE, "one"), duration, json!("6s")));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "two"));
    let shared = api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        route["status"]["traffic"].as_array().is_some_and(|traffic| traffic.len() == 2)
    });
    let ingress = condition(&shared, "IngressReady").unwrap();
    assert_eq!((&ingress["status"], &ingress["reason"]), (&json!("Unknown"), &json!("RolloutInProgress")));
    let percents = |route: &Value| -> Vec<i64> {
        route["status"]["traffic"].as_array().into_iter().flatten().filter_map(|t| t["percent"].as_i64()).collect()
    };
    assert_eq!(percents(&shared).iter().sum::<i64>(), 100);
    let mut seen = Vec::new();
    wait::until(TIMEOUT, "the rollout to end", || {
        let route = api.get("Route", NAMESPACE, "hello").unwrap();
        let shares = percents(&route);
        assert_eq!(shares.iter().sum::<i64>(), 100, "{route:#}");
        if seen.last() != shares.last() {
            seen.extend(shares.last());
        }
        // Every response meanwhile is a greeting.
        assert_eq!(HttpCall::get("/").host("hello.default.localhost").send(appliance.http()).status, 200);
        (shares == [100] && route["status"]["traffic"][0]["revisionName"] == "hello-00002").then_some(())
    });
    assert!(seen.len() >= 3 && seen.is_sorted(), "by steps and never back: {seen:?}");
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
}

/// SRV-REV-17: where a Revision's status says, there is what its instances wrote, and stays when they are gone.
#[test]
fn the_log_of_a_revision_is_where_its_status_says() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let template = format!("http://{}/sluicegate/logs/${{REVISION_UID}}", api.address());
    configure(api, "config-observability", json!({ "logging.revision-url-template": template }));
    api.create(&service("hello", IMAGE, "x"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let log = |query: &str| {
        let revision = api.get("Revision", NAMESPACE, "hello-00001").expect("it is there");
        let url = revision["status"]["logUrl"].as_str().expect("a template makes one").to_owned();
        let path = url.strip_prefix(&format!("http://{}", api.address())).expect("the template's beginning");
        let answer = HttpCall::get(&format!("{path}{query}")).send(api.address());
        assert_eq!(answer.status, 200, "{answer}");
        answer.text()
    };
    let is_heard = |count: usize| {
        let log = log("");
        (log.matches("listening on").count() == count).then_some(log)
    };
    let first = wait::until(TIMEOUT, "its first words", || is_heard(1));
    assert!(first.starts_with("==> instance "), "{first}");

    let pod = api.list("Pod", NAMESPACE).remove(0);
    api.delete("Pod", NAMESPACE, pod["metadata"]["name"].as_str().unwrap_or_default());
    let both = wait::until(TIMEOUT, "the words of both", || {
        let answer = HttpCall::get("/").host("hello.default.localhost").send(appliance.http());
        assert_eq!(answer.status, 200, "{answer}");
        is_heard(2)
    });
    assert!(both.starts_with(&first), "what was written stays: {both}");
    let heads = log("?tailLines=0");
    assert_eq!(heads.lines().count(), 2, "{heads}");
    assert!(heads.lines().all(|line| line.starts_with("==> instance ")), "{heads}");
}

/// RT-PORT-02, RT-PORT-07: with `autodetect-http2` a program whose port has no name, and which speaks HTTP/2, sees HTTP/2; one whose
/// port is `http1` does not, and one that speaks nothing but HTTP/1 serves as ever. The program is a second appliance.
#[test]
fn who_speaks_http2_is_spoken_to_in_http2_if_the_operator_wants_it() {
    let gate = format!(
        "{IMAGE}/gate=sh -c 'exec {BIN} run --workers 1 --access-log json --http 127.0.0.1:$PORT --private 127.0.0.1:0 \
         --events 127.0.0.1:0 --api 127.0.0.1:0 --admin 127.0.0.1:0 --data \"$DATA\"'"
    );
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("image", &gate);
    let data = setup.data();
    let appliance = setup.start();
    let api = appliance.api();
    let spoken = |service_name: &str, ports: Value| {
        let folder = data.with_file_name(service_name);
        let container = json!([{ "image": format!("{IMAGE}/gate"), "ports": ports,
            "env": [{ "name": "DATA", "value": folder }] }]);
        api.create(&with(service(service_name, IMAGE, ""), "/spec/template/spec/containers", container));
        api.wait_ready("Service", NAMESPACE, service_name, TIMEOUT);
        let host = format!("{service_name}.default.localhost");
        assert_eq!(HttpCall::get("/seen").host(&host).send(appliance.http()).status, 404, "it has no routes");
        wait::until(TIMEOUT, "the program's line about the request", || {
            let pods = api.list("Pod", NAMESPACE);
            let name = pods
                .iter()
                .find_map(|pod| pod["metadata"]["name"].as_str().filter(|name| name.starts_with(service_name)))?;
            let log = HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log")).send(api.address());
            let line: Value = log
                .text()
                .lines()
                .find_map(|line| serde_json::from_str(line).ok().filter(|line: &Value| line["path"] == "/seen"))?;
            line["protocol"].as_str().map(str::to_owned)
        })
    };
    assert_eq!(spoken("before", json!([])), "HTTP/1.1");
    configure(api, "config-features", json!({ "autodetect-http2": "Enabled" }));
    assert_eq!(spoken("unnamed", json!([{ "containerPort": 8080 }])), "HTTP/2");
    assert_eq!(spoken("named", json!([{ "name": "http1", "containerPort": 8080 }])), "HTTP/1.1");

    api.create(&service("old", IMAGE, "you"));
    api.wait_ready("Service", NAMESPACE, "old", TIMEOUT);
    let answer = HttpCall::get("/").host("old.default.localhost").send(appliance.http());
    assert_eq!(answer.text(), "Hello you from old-00001\n");
}
