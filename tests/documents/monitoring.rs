//! The Grafana dashboard and the alert rules use only metrics and labels that exist.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Labels that Prometheus adds, and one that the histogram format has.
const ADDED_LABELS: [&str; 3] = ["instance", "job", "le"];
/// Suffixes of the lines of a counter and of a histogram.
const SUFFIXES: [(&str, &[&str]); 3] =
    [("counter", &["_total"]), ("gauge", &[""]), ("histogram", &["_bucket", "_sum", "_count"])];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The lines that `/metrics` has, from the page that another test holds against the binary.
fn series() -> Vec<String> {
    let page = read("docs/reference/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.flat_map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        let kind = rest.split(" | ").next().unwrap();
        let suffixes = SUFFIXES.iter().find(|(of, _)| *of == kind).map(|(_, suffixes)| *suffixes).unwrap();
        suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
    })
    .collect()
}

/// The expressions of a dashboard or of alert rules, by the title of their panel or alert.
fn expressions(document: &Value, title: &str, found: &mut BTreeMap<String, Vec<String>>) {
    let title = ["alert", "title"].iter().find_map(|key| document[*key].as_str()).unwrap_or(title);
    match document {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "expr" => {
                        found.entry(title.to_owned()).or_default().push(text.clone())
                    }
                    _ => expressions(value, title, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, title, found)),
        _ => {}
    }
}

/// Words of an expression that name metrics.
fn metrics(expression: &str) -> Vec<&str> {
    expression
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("sluicegate_") || word.starts_with("kn_"))
        .collect()
}

fn check(path: &str, document: &Value) {
    let (series, mut found) = (series(), BTreeMap::new());
    expressions(document, path, &mut found);
    assert!(found.len() > 5, "{path} has {} expressions", found.len());
    for (title, texts) in &found {
        for text in texts {
            let unknown: Vec<_> =
                metrics(text).into_iter().filter(|name| !series.iter().any(|other| other == name)).collect();
            assert!(unknown.is_empty(), "{path}: {title}: no such metric: {unknown:?}");
            let depth = text.chars().try_fold(0_i32, |depth, letter| match letter {
                '(' => Some(depth + 1),
                ')' => (depth > 0).then_some(depth - 1),
                _ => Some(depth),
            });
            assert_eq!(depth, Some(0), "{path}: {title}: unbalanced parentheses in {text}");
        }
    }
}

/// The labels by which expressions group, and those by which they select.
fn labels(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    for clause in expression.split("by (").skip(1) {
        let names = clause.split(')').next().unwrap();
        found.extend(names.split(',').map(|name| name.trim().to_owned()));
    }
    found
}

#[test]
fn grafana_dashboard_uses_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/sluicegate.json")).unwrap();
    check("deploy/grafana/sluicegate.json", &dashboard);
}

#[test]
fn alert_rules_use_existing_metrics() {
    let rules: Value = serde_norway::from_str(&read("deploy/prometheus/alerts.yaml")).unwrap();
    check("deploy/prometheus/alerts.yaml", &rules);
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let texts = &rule["annotations"];
        assert!(texts["summary"].is_string() && texts["description"].is_string(), "{rule}");
    }
}

#[test]
fn dashboard_and_alerts_group_by_existing_labels() {
    const EXISTING: [&str; 10] =
        ["backend", "class", "core", "kind", "outcome", "phase", "reason", "source", "stream", "subscriber"];
    let sources: String =
        ["src/admin/metrics.rs", "src/admin/metrics"].iter().map(|path| code(Path::new(path))).collect();
    for label in EXISTING {
        assert!(sources.contains(&format!("\"{label}\"")), "no metric has the label {label}");
    }
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/sluicegate.json")).unwrap();
    let rules: Value = serde_norway::from_str(&read("deploy/prometheus/alerts.yaml")).unwrap();
    let mut found = BTreeMap::new();
    expressions(&dashboard, "dashboard", &mut found);
    expressions(&rules, "alerts", &mut found);
    for (title, label) in found.iter().flat_map(|(title, texts)| {
        texts.iter().flat_map(move |text| labels(text).into_iter().map(move |label| (title, label)))
    }) {
        assert!(
            EXISTING.contains(&label.as_str()) || ADDED_LABELS.contains(&label.as_str()),
            "{title}: no label {label}"
        );
    }
}

fn code(path: &Path) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if path.is_file() {
        return fs::read_to_string(path).unwrap();
    }
    fs::read_dir(path).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}
