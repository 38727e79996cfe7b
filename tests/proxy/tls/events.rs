//! Events by TLS: `--events-https` and `transport-encryption`.

use std::net::SocketAddr;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, trigger, with};
use kit::scene::{BROKER, ids, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

use super::client::{BIN, BOTH, TlsTestClient};

fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "2")
}

fn by_tls() -> ApplianceSetup {
    setup().flag("events-https", "127.0.0.1:0")
}

fn encryption(api: KitApi, word: &str) {
    let data = json!({ "data": { "transport-encryption": word } });
    api.patch("ConfigMap", "knative-eventing", "config-features", &data);
}

/// The named address in a status, once it is there.
fn address(api: KitApi, kind: &str, name: &str, which: &str) -> Value {
    let find = |object: &Value| {
        let all = object["status"]["addresses"].as_array()?;
        all.iter().find(|address| address["name"] == which).cloned()
    };
    find(&api.wait_for(kind, NAMESPACE, name, TIMEOUT, |object| find(object).is_some())).unwrap()
}

fn of_url(url: &Value) -> (SocketAddr, String) {
    let uri: http::Uri = url.as_str().unwrap().parse().unwrap();
    (uri.authority().unwrap().as_str().parse().unwrap(), uri.path().to_owned())
}

/// The status of a POST by TLS, to a server that is trusted by `address` alone.
fn sent(address: &Value, id: &str) -> u16 {
    let (to, path) = of_url(&address["url"]);
    let client = TlsTestClient::believing(address["CACerts"].as_str().unwrap(), BOTH);
    client.call(to, &to.ip().to_string(), &TestEvent::new(id).binary(&path)).unwrap().status
}

fn plain(appliance: &Appliance, id: &str) -> u16 {
    TestEvent::new(id).binary(BROKER).send(appliance.events()).status
}

/// X-FEA-05: `permissive` adds an https address that `CACerts` vouch for, and both work; `strict` takes the one in the
/// clear away, and what the appliance sends itself goes by TLS too; `disabled` is as before. Each without a restart.
#[test]
fn events_come_in_by_tls_as_the_operator_wants() {
    let (sink, appliance) = (EventSink::start(), kit::scene::with_broker(&by_tls()));
    let api = appliance.api();
    subscribe(api, "all", &sink.url(), &[]);
    assert!(api.get("Broker", NAMESPACE, "main").unwrap()["status"].get("addresses").is_none());

    encryption(api, "permissive");
    let secure = address(api, "Broker", "main", "https");
    let status = &api.get("Broker", NAMESPACE, "main").unwrap()["status"];
    assert_eq!((&status["address"]["name"], &status["addresses"][0]), (&json!("http"), &secure));
    assert_eq!((sent(&secure, "1"), plain(&appliance, "2")), (202, 202));

    encryption(api, "strict");
    let strict = api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        object["status"]["address"]["name"] == "https" && object["status"]["addresses"].as_array().unwrap().len() == 1
    });
    assert_eq!(strict["status"]["address"], secure);
    wait::until(TIMEOUT, "nothing more in the clear", || (plain(&appliance, "no") == 404).then_some(()));
    // A Channel between, which a Trigger refers to and a Subscription reads.
    api.create(&channel("hop"));
    api.wait_ready("Channel", NAMESPACE, "hop", TIMEOUT);
    assert_eq!(address(api, "Channel", "hop", "https")["CACerts"], secure["CACerts"]);
    api.create(&broker("far"));
    api.wait_ready("Broker", NAMESPACE, "far", TIMEOUT);
    let far = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "far" } });
    api.create(&with(trigger("over", "main", "http://unused/"), "/spec/subscriber", far));
    api.wait_ready("Trigger", NAMESPACE, "over", TIMEOUT);
    let beyond = EventSink::start();
    api.create(&trigger("beyond", "far", &beyond.url()));
    api.wait_ready("Trigger", NAMESPACE, "beyond", TIMEOUT);
    assert_eq!(sent(&secure, "3"), 202);
    beyond.wait_until(TIMEOUT, |all| ids(all).contains(&"3".to_owned())).unwrap();
    let mut got = ids(&sink.wait_for(3, TIMEOUT));
    got.sort();
    assert_eq!(got, ["1", "2", "3"]);

    encryption(api, "disabled");
    wait::until(TIMEOUT, "the clear again", || (plain(&appliance, "4") == 202).then_some(()));
    assert_eq!(sent(&secure, "no"), 404);
}

/// X-FEA-05: an object without an allowed plain address and without a TLS address reports that and is not Ready.
#[test]
fn strict_without_a_listener_says_what_to_do() {
    let appliance = kit::scene::with_broker(&setup());
    let api = appliance.api();
    encryption(api, "strict");
    let cut_off = api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    let why = condition(&cut_off, "Addressable").unwrap();
    assert_eq!(why["reason"], "TLSListenerNotConfigured");
    assert!(why["message"].as_str().unwrap().contains("--events-https"), "{why}");
    assert!(cut_off["status"].get("address").is_none());
    encryption(api, "permissive");
    api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    assert_eq!(plain(&appliance, "1"), 202);
}

/// The authority stays over a restart and a takeover; the listener goes over to the new process.
#[test]
fn the_authority_outlives_the_process() {
    let mut appliance = kit::scene::with_broker(&by_tls());
    encryption(appliance.api(), "permissive");
    let before = address(appliance.api(), "Broker", "main", "https");
    assert_eq!(sent(&before, "1"), 202);
    appliance.restart();
    let after = appliance.api().wait_for("Broker", NAMESPACE, "main", TIMEOUT, |object| {
        object["status"]["addresses"][0]["url"] != before["url"]
    });
    let after = &after["status"]["addresses"][0];
    assert_eq!(after["CACerts"], before["CACerts"]);
    assert_eq!(sent(after, "2"), 202);
    let _next = appliance.successor();
    assert_eq!(appliance.wait().code(), Some(0), "{}", appliance.stderr());
    assert_eq!(sent(after, "3"), 202, "at the address of the process before");
}
