//! Writes the reference pages from the built binary, and compares the pages with it: the command line from `--help`, the kinds from
//! the API's discovery, the roles from its ClusterRoles, the metrics from `/metrics`.
//! `UPDATE_REFERENCE=1 cargo test --test documents reference` rewrites them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use kit::manifest::{NAMESPACE, channel, service, subscription};
use kit::scene::{accepted, post, subscribe, with_broker};
use kit::{ApplianceSetup, EventSink, HttpCall, TIMEOUT, TestEvent, wait};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";

/// Writes or compares a page of docs/reference.
fn hold(page: &str, text: &str) {
    hold_file(&format!("docs/reference/{page}"), text);
}

/// Writes or compares a generated file.
fn hold_file(page: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(path, text).unwrap();
        return;
    }
    let has = fs::read_to_string(path).unwrap_or_default();
    let differ: Vec<_> = text.lines().filter(|line| !has.lines().any(|other| other == *line)).collect();
    assert!(has == text, "{page} is stale: run UPDATE_REFERENCE=1 cargo test --test documents reference\n{differ:#?}");
}

fn help(verbs: &[String]) -> String {
    let output = Command::new(BIN).args(verbs).arg("--help").output().unwrap();
    assert!(output.status.success(), "{verbs:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of a section of a help text.
fn section<'a>(help: &'a str, title: &str) -> Vec<&'a str> {
    help.lines()
        .skip_while(|line| *line != title)
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .collect()
}

/// A flag or an argument, and its words without the environment and the default.
struct Parameter {
    name: String,
    words: String,
    environment: String,
    default: String,
}

/// Takes `[KEY VALUE]` out of the words of a parameter.
fn take(words: &mut String, key: &str) -> String {
    let Some(start) = words.find(&format!("[{key}")) else { return String::new() };
    let end = start + words[start..].find(']').unwrap();
    let value = words[start + key.len() + 1..end].trim().trim_end_matches('=').to_owned();
    words.replace_range(start..=end, "");
    value
}

fn parameters(help: &str, title: &str) -> Vec<Parameter> {
    let mut found: Vec<Parameter> = Vec::new();
    for line in section(help, title) {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        let begins = indent <= 6 && (text.starts_with('-') || text.starts_with('<') || text.starts_with('['));
        if begins {
            let (name, words) = text.split_once("  ").unwrap_or((text, ""));
            let (name, words) = (name.to_owned(), words.trim().to_owned());
            found.push(Parameter { name, words, environment: String::new(), default: String::new() });
        } else if let (Some(last), false) = (found.last_mut(), text.is_empty()) {
            last.words = format!("{} {text}", last.words).trim().to_owned();
        }
    }
    for parameter in &mut found {
        parameter.environment = take(&mut parameter.words, "env:");
        parameter.default = take(&mut parameter.words, "default:");
        parameter.words = parameter.words.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    found.retain(|parameter| !["-h, --help", "-V, --version"].contains(&parameter.name.as_str()));
    found
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

/// A verb, its parameters, and its own verbs after it.
fn describe(verbs: &[String], page: &mut String) {
    let help = help(verbs);
    let about = help.lines().next().unwrap_or_default();
    if !verbs.is_empty() {
        write!(page, "\n## `sluicegate {}`\n\n{}\n", verbs.join(" "), cell(about)).unwrap();
        let rows: Vec<_> = ["Arguments:", "Options:"].iter().flat_map(|title| parameters(&help, title)).collect();
        if !rows.is_empty() {
            page.push_str("\n| option | environment | default | meaning |\n|---|---|---|---|\n");
        }
        for Parameter { name, words, environment, default } in rows {
            let (name, environment, default) = (quoted(&name), quoted(&environment), quoted(&default));
            writeln!(page, "| {name} | {environment} | {default} | {} |", cell(&words)).unwrap();
        }
    }
    for line in section(&help, "Commands:") {
        let name = line.split_whitespace().next().unwrap_or_default();
        if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
            describe(&[verbs, &[name.to_owned()]].concat(), page);
        }
    }
}

#[test]
fn command_line_page_says_what_help_says() {
    let mut page = "# Command line\n\nEach option of `sluicegate run` is also a key of the `--config` file, under the option's name without its dashes. \
                    An option on the command line wins over the environment, and the environment wins over the file.\n"
        .to_owned();
    describe(&[], &mut page);
    assert!(page.contains("| `--http <ADDR>` | `SLUICEGATE_HTTP` | `127.0.0.1:8080` |"), "{page}");
    hold("command-line.md", &page);
}

#[test]
fn kinds_page_says_what_discovery_says() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let get = |path: &str| -> Value {
        serde_json::from_str(&HttpCall::get(path).send(appliance.api().address()).text()).unwrap()
    };
    let mut page = "# Kinds\n\nThe kinds that the embedded API serves, as its discovery lists them; `kubectl explain KIND` has their fields. \
                    CustomResourceDefinitions add more.\n"
        .to_owned();
    let groups = get("/apis");
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array().unwrap());
    let paths = versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
    for path in ["/api/v1".to_owned()].into_iter().chain(paths.collect::<BTreeSet<_>>()) {
        let list = get(&path);
        write!(page, "\n## {}\n\n", list["groupVersion"].as_str().unwrap()).unwrap();
        page.push_str("| kind | name | short names | scope | subresources | verbs |\n|---|---|---|---|---|---|\n");
        let resources = list["resources"].as_array().unwrap();
        for resource in resources.iter().filter(|resource| !resource["name"].as_str().unwrap().contains('/')) {
            let name = resource["name"].as_str().unwrap();
            let below = format!("{name}/");
            let parts = resources.iter().filter_map(|other| other["name"].as_str().unwrap().strip_prefix(&below));
            let words = |key: &str| {
                let words = resource[key].as_array().map_or(&[][..], Vec::as_slice);
                words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            };
            let scope = if resource["namespaced"] == true { "namespace" } else { "cluster" };
            let (kind, parts) = (resource["kind"].as_str().unwrap(), parts.collect::<Vec<_>>().join(", "));
            let verbs = words("verbs");
            let verbs = if verbs.split(", ").count() == 8 { "all".to_owned() } else { verbs };
            writeln!(page, "| {kind} | `{name}` | {} | {scope} | {parts} | {verbs} |", words("shortNames")).unwrap();
        }
    }
    page.push_str(
        "\n## Definitions\n\nKinds with a CustomResourceDefinition. Clients find them by its labels, which all have the value `true`.\n\n\
         | definition | stored version | labels |\n|---|---|---|\n",
    );
    let definitions = get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
    for definition in definitions["items"].as_array().unwrap() {
        let metadata = &definition["metadata"];
        let labels = metadata["labels"].as_object().unwrap().keys();
        let labels: Vec<_> =
            labels.filter(|label| *label != "knative.dev/crd-install").map(|one| quoted(one)).collect();
        let mut versions = definition["spec"]["versions"].as_array().unwrap().iter();
        let stored = versions.find(|version| version["storage"] == true).unwrap();
        let (name, stored) = (metadata["name"].as_str().unwrap(), stored["name"].as_str().unwrap());
        writeln!(page, "| {name} | {stored} | {} |", labels.join(", ")).unwrap();
    }
    hold("kinds.md", &page);
}

/// The strings of a list, sorted: the order of a rule's words means nothing.
fn sorted_words(list: &Value) -> String {
    let mut words: Vec<_> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    words.sort_unstable();
    words.iter().map(|word| if word.is_empty() { "core" } else { *word }).collect::<Vec<_>>().join(", ")
}

/// EV-API-05, SRC-27: what each role grants, and which labels add its rules to another role.
#[test]
fn roles_page_says_what_the_api_serves() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let roles: Value = serde_json::from_str(&HttpCall::get(path).send(appliance.api().address()).text()).unwrap();
    let mut page = "# Roles\n\nThe ClusterRoles that the embedded API has from its first start, as it serves them. A role that aggregates has the rules of \
                    all roles with one of the labels.\n"
        .to_owned();
    for role in roles["items"].as_array().unwrap() {
        write!(page, "\n## {}\n\n", role["metadata"]["name"].as_str().unwrap()).unwrap();
        for (label, value) in role["metadata"]["labels"].as_object().into_iter().flatten() {
            writeln!(page, "- label `{label}: {value}`").unwrap();
        }
        let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
        for (label, value) in selectors.into_iter().flatten().flat_map(|one| one["matchLabels"].as_object().unwrap()) {
            writeln!(page, "- aggregates `{label}: {value}`").unwrap();
        }
        let rules = role["rules"].as_array().filter(|_| selectors.is_none());
        let rules: BTreeSet<_> = rules.into_iter().flatten().map(rule_line).collect();
        rules.iter().for_each(|line| page.push_str(line));
    }
    hold("roles.md", &page);
    hold_follow_role(&roles);
}

/// The Helm chart, of which `deploy/follow.yaml` is made, gives an appliance in a cluster the rights that the embedded API
/// gives to followers.
fn hold_follow_role(roles: &Value) {
    const FILE: &str = "deploy/helm/sluicegate/files/controller-rules.yaml";
    let mut roles = roles["items"].as_array().unwrap().iter();
    let role = roles.find(|role| role["metadata"]["name"] == "sluicegate-controller").unwrap();
    let list = |words: &Value, quote: &str| {
        let words = words.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        words.map(|word| format!("{quote}{word}{quote}")).collect::<Vec<_>>().join(", ")
    };
    let mut rules = String::new();
    for rule in role["rules"].as_array().unwrap() {
        writeln!(rules, "- apiGroups: [{}]", list(&rule["apiGroups"], "\"")).unwrap();
        writeln!(rules, "  resources: [{}]", list(&rule["resources"], "")).unwrap();
        writeln!(rules, "  verbs: [{}]", list(&rule["verbs"], "")).unwrap();
    }
    hold_file(FILE, &rules);
}

fn rule_line(rule: &Value) -> String {
    let names = sorted_words(&rule["resourceNames"]);
    let names = if names.is_empty() { names } else { format!(" named {names}") };
    let verbs = sorted_words(&rule["verbs"]);
    if rule["nonResourceURLs"].is_array() {
        return format!("- {verbs}: URLs {}\n", cell(&sorted_words(&rule["nonResourceURLs"])));
    }
    format!("- {}: {}{names}: {verbs}\n", sorted_words(&rule["apiGroups"]), sorted_words(&rule["resources"]))
}

#[test]
fn metrics_page_says_what_metrics_say() {
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2").hello_image(IMAGE));
    let sink = EventSink::start();
    subscribe(appliance.api(), "t", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    let api = appliance.api();
    api.create(&channel("c"));
    api.create(&subscription("s", "c", &sink.url()));
    api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    accepted(&TestEvent::new("2").binary("/channels/default/c"), &appliance);
    api.create(&service("hello", IMAGE, "hello"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    HttpCall::get("/").host("hello.default.localhost").send(appliance.http());
    let read = || HttpCall::get("/metrics").send(appliance.admin()).text();
    wait::until(TIMEOUT, "the last of the measured things is measured", || {
        let text = read();
        ["kn_eventing_dispatch_duration_seconds_count", "kn_serving_invocation_duration_seconds_count"]
            .iter()
            .all(|name| text.contains(name))
            .then_some(())
    });
    let text = read();
    let words = |prefix| text.lines().filter_map(move |line: &str| line.strip_prefix(prefix)?.split_once(' '));
    let types: BTreeMap<_, _> = words("# TYPE ").collect();
    let mut page = "# Metrics\n\n`/metrics` of the admin listener, as OpenMetrics text. Counters have the suffix `_total` in each line. Metrics of \
                    streams, subscribers and Revisions appear with the first of them. [Admin listener and metrics](../admin.md) has the labels and the bounds.\n\n\
                    | metric | type | meaning |\n|---|---|---|\n"
        .to_owned();
    for (name, meaning) in words("# HELP ").collect::<BTreeMap<_, _>>() {
        writeln!(page, "| `{name}` | {} | {} |", types.get(name).unwrap(), cell(meaning)).unwrap();
    }
    hold("metrics.md", &page);
}
