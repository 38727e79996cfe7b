//! A template with several containers: one serves, and the others run as sidecars.

use std::net::{SocketAddr, TcpListener, TcpStream};

use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";

/// `helper` listens on a port of its own.
fn pair(name: &str, port: u16) -> Value {
    let server = json!({ "name": "server", "image": IMAGE, "ports": [{ "containerPort": 8080 }],
        "env": [{ "name": "TARGET", "value": "outside" }] });
    let helper = json!({ "name": "helper", "image": IMAGE,
        "env": [{ "name": "PORT", "value": port.to_string() }, { "name": "TARGET", "value": "beside" }] });
    with(service(name, IMAGE, ""), "/spec/template/spec/containers", json!([helper, server]))
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

fn configure(api: KitApi, data: Value) {
    api.patch("ConfigMap", "knative-serving", "config-features", &json!({ "data": data }));
}

/// SRV-REV-09, AMB-10: both run, the one with the port answers, the status and the logs of each are available by its name, and they end together.
#[test]
fn sidecar_runs_next_to_serving_container() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let (api, aside) = (appliance.api(), free_address());
    api.create(&pair("pair", aside.port()));
    api.wait_ready("Service", NAMESPACE, "pair", TIMEOUT);
    let answer = HttpCall::get("/").host("pair.default.localhost").send(appliance.http());
    assert_eq!(answer.text(), "Hello outside from pair-00001\n");
    assert_eq!(HttpCall::get("/").send(aside).text(), "Hello beside from pair-00001\n");

    let pod = wait::until(TIMEOUT, "both containers to be shown as ready", || {
        let pods = api.list_selected("Pod", NAMESPACE, "serving.knative.dev/revision=pair-00001");
        pods.into_iter().find(|pod| {
            let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            statuses.len() == 2 && statuses.iter().all(|one| one["ready"] == true)
        })
    });
    let metadata = &pod["metadata"];
    assert_eq!(metadata["annotations"]["kubectl.kubernetes.io/default-container"], "server");
    let log = |query: &str| {
        let name = metadata["name"].as_str().unwrap_or_default();
        HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log{query}")).send(api.address())
    };
    for (query, listens_at) in [("?container=helper", Some(aside.port())), ("?container=server", None), ("", None)] {
        wait::until(TIMEOUT, query, || log(query).text().contains("listening on").then_some(()));
        let own = log(query).text().contains(&format!(":{}\n", aside.port()));
        assert_eq!(own, listens_at.is_some(), "{query}: {}", log(query));
    }
    assert_eq!(log("?container=nobody").status, 400);

    api.delete("Service", NAMESPACE, "pair");
    wait::until(TIMEOUT, "the sidecar to end", || TcpStream::connect(aside).is_err().then_some(()));
}

/// AMB-10: whether a template may have several containers, and probes of those that do not serve, is the operator's word.
#[test]
fn features_say_whether_there_may_be_sidecars_and_whether_they_are_probed() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let (api, aside) = (appliance.api(), free_address());
    let probe = json!({ "httpGet": { "path": "/", "port": aside.port() }, "periodSeconds": 1 });
    let mut probed = pair("probed", aside.port());
    probed["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe;
    let refused = |why: &str| {
        let answer = api.try_create(&probed);
        assert!((400..500).contains(&answer.status) && answer.text().contains(why), "{answer}");
    };
    refused("containers[0].readinessProbe");
    configure(api, json!({ "multi-container-probing": "enabled" }));
    api.create(&probed);
    api.wait_ready("Service", NAMESPACE, "probed", TIMEOUT);
    assert_eq!(HttpCall::get("/").send(aside).status, 200);

    configure(api, json!({ "multi-container": "disabled" }));
    refused("multi-container is off, but found 2 containers");
}

/// Init containers: rejected until the operator enables them, then the serving container finds their output, it is logged
/// by its name, and one that fails says why.
#[test]
fn init_containers_run_before_the_container_that_serves() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let of = |name: &str, script: &str| {
        let before = json!([{ "name": "setup", "image": IMAGE, "command": ["/bin/sh", "-c", script] }]);
        with(service(name, IMAGE, "late"), "/spec/template/spec/initContainers", before)
    };
    let (good, bad) = (of("good", "echo prepared"), of("bad", "echo no key; exit 3"));
    let refused = api.try_create(&good);
    assert!(refused.text().contains("pod spec support for init-containers is off"), "{refused}");
    configure(api, json!({ "kubernetes.podspec-init-containers": "enabled" }));
    api.create(&good);
    api.wait_ready("Service", NAMESPACE, "good", TIMEOUT);
    let answer = HttpCall::get("/").host("good.default.localhost").send(appliance.http());
    assert_eq!(answer.text(), "Hello late from good-00001\n");
    let pod = wait::until(TIMEOUT, "the Pod to be shown as ready", || {
        let pods = api.list_selected("Pod", NAMESPACE, "serving.knative.dev/revision=good-00001");
        pods.into_iter().find(|pod| pod["status"]["containerStatuses"][0]["ready"] == true)
    });
    let setup = &pod["status"]["initContainerStatuses"][0];
    assert_eq!((&setup["state"]["terminated"]["reason"], &setup["ready"]), (&json!("Completed"), &json!(true)));
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log?container=setup");
    assert_eq!(HttpCall::get(&path).send(api.address()).text(), "prepared\n");

    api.create(&bad);
    let failed = api.wait_for("Revision", NAMESPACE, "bad-00001", TIMEOUT, |revision| {
        kit::api::condition(revision, "ContainerHealthy").is_some_and(|found| found["status"] == "False")
    });
    let reported = kit::api::condition(&failed, "ContainerHealthy").cloned().unwrap_or_default();
    let message = reported["message"].as_str().unwrap_or_default();
    assert!(reported["reason"] == "ExitCode3" && message.contains("init container setup"), "{reported}");
}
