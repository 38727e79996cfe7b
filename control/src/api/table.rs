//! `Table` output: what `kubectl get` prints, computed by the server.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{
    COUNT, Column, ENDPOINTS, KindMeta, LABELS, LOWER_PAIR, PAIR, RATIO, SERVICE_OUTSIDE, SERVICE_PORTS,
    SOME, STAMP,
};
use crate::store::Stored;

use super::parameters::IncludeObject;
use super::{accept, jsonpath};

/// Entries of a cell that shows some of many; kubectl's figure.
const SHOWN_MAX: usize = 3;

/// A table of `objects`; ages are counted until `now`.
pub(super) fn of(
    meta: &KindMeta,
    objects: &[&Stored],
    version: &str,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let named = json!({
        "name": "Name",
        "type": "string",
        "format": "name",
        "description": "Name must be unique within a namespace.",
        "priority": 0,
    });
    let mut columns: Vec<Value> = if names_itself(meta) { Vec::new() } else { vec![named] };
    columns.extend(meta.columns.iter().map(|column| {
        json!({
            "name": column.name,
            "type": told_type(column),
            "format": "",
            "description": format!("{} of the {}", column.name, meta.kind),
            "priority": column.priority,
        })
    }));
    let rows: Vec<Value> = objects.iter().map(|object| row(meta, object, include, now)).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": version },
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn row(meta: &KindMeta, object: &Stored, include: IncludeObject, now: Timestamp) -> Value {
    let mut cells = if names_itself(meta) { Vec::new() } else { vec![Value::from(&*object.key.name)] };
    let mut value = object.value();
    cells.extend(meta.columns.iter().map(|column| cell(column, &value, now)));
    match include {
        IncludeObject::None => json!({ "cells": cells }),
        IncludeObject::Metadata => {
            json!({ "cells": cells, "object": accept::partial(value["metadata"].take()) })
        }
        IncludeObject::Object => json!({ "cells": cells, "object": value }),
    }
}

/// The kind says itself where the name stands.
fn names_itself(meta: &KindMeta) -> bool {
    meta.columns.iter().any(|column| column.name == "Name")
}

fn told_type(column: &Column) -> &str {
    match column.format {
        RATIO | COUNT | PAIR | LOWER_PAIR | LABELS | ENDPOINTS | SOME | SERVICE_PORTS | SERVICE_OUTSIDE => {
            "string"
        }
        STAMP => "date",
        other => other,
    }
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    match column.format {
        COUNT => return count(column.path, object).into(),
        PAIR | LOWER_PAIR => return pairs(column, object).into(),
        ENDPOINTS => return endpoints(object).into(),
        SOME => return some(jsonpath::find(column.path, object).into_iter().map(plain).collect()).into(),
        SERVICE_PORTS => return service_ports(object).into(),
        SERVICE_OUTSIDE => return service_outside(object).into(),
        _ => {}
    }
    let mut choices = column.path.split('|').map(|path| match path.strip_prefix('=') {
        Some(literal) => Err(literal),
        None => Ok(jsonpath::find(path, object)),
    });
    let found = match choices.find(|found| found.as_ref().map_or(true, |found| !found.is_empty())) {
        Some(Ok(found)) => found,
        Some(Err(literal)) => return literal.into(),
        None => return Value::Null,
    };
    let [first, ..] = found.as_slice() else { return Value::Null };
    match column.format {
        RATIO => {
            let good = found.iter().filter(|value| **value == true).count();
            format!("{good}/{}", found.len()).into()
        }
        "date" => {
            let stamp = first.as_str().and_then(|text| text.parse::<Timestamp>().ok());
            stamp.map_or("<unknown>".into(), |stamp| age(now.as_second() - stamp.as_second()).into())
        }
        "integer" => (*first).clone(),
        LABELS => {
            let pairs = first.as_object().into_iter().flatten();
            pairs.map(|(key, value)| format!("{key}={}", plain(value))).collect::<Vec<_>>().join(",").into()
        }
        _ => found.iter().map(|value| plain(value)).collect::<Vec<_>>().join(",").into(),
    }
}

/// The entries of everything that the paths find, together.
fn count(paths: &str, object: &Value) -> usize {
    let size = |value: &Value| {
        value.as_object().map_or_else(|| value.as_array().map_or(0, Vec::len), serde_json::Map::len)
    };
    paths.split('+').flat_map(|path| jsonpath::find(path, object)).map(size).sum()
}

fn pairs(column: &Column, object: &Value) -> String {
    let (one, other) = column.path.split_once('+').unwrap_or((column.path, ""));
    let shown =
        jsonpath::find(one, object).into_iter().zip(jsonpath::find(other, object)).map(|(one, other)| {
            let one = plain(one);
            let one = if column.format == LOWER_PAIR { one.to_lowercase() } else { one };
            format!("{one}/{}", plain(other))
        });
    shown.collect::<Vec<_>>().join(",")
}

/// The first few of many.
fn some(all: Vec<String>) -> String {
    if all.is_empty() {
        return "<none>".into();
    }
    let shown = all.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(",");
    if all.len() > SHOWN_MAX { format!("{shown} + {} more...", all.len() - SHOWN_MAX) } else { shown }
}

/// Ready addresses, each with each port of its subset.
fn endpoints(object: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for subset in list(&object["subsets"]) {
        let (addresses, ports) = (list(&subset["addresses"]), list(&subset["ports"]));
        if ports.is_empty() {
            all.extend(addresses.iter().map(|address| plain(&address["ip"])));
        }
        for port in &ports {
            all.extend(addresses.iter().map(|at| format!("{}:{}", plain(&at["ip"]), plain(&port["port"]))));
        }
    }
    some(all)
}

/// `80/TCP,443:30443/TCP`
fn service_ports(service: &Value) -> String {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let ports = ports.map(|port| {
        let outside = port["nodePort"].as_i64().filter(|port| *port != 0);
        let outside = outside.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{outside}/{}", plain(&port["port"]), plain(&port["protocol"]))
    });
    let shown = ports.collect::<Vec<_>>().join(",");
    if shown.is_empty() { "<none>".into() } else { shown }
}

fn service_outside(service: &Value) -> String {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return plain(&spec["externalName"]);
    }
    let balanced = spec["type"] == "LoadBalancer";
    let entries = service["status"]["loadBalancer"]["ingress"].as_array().filter(|_| balanced);
    let entry =
        |entry: &Value| plain(if entry["ip"].is_string() { &entry["ip"] } else { &entry["hostname"] });
    let mut shown: Vec<String> = entries.into_iter().flatten().map(entry).collect();
    shown.extend(spec["externalIPs"].as_array().into_iter().flatten().map(plain));
    match shown.as_slice() {
        [] if balanced => "<pending>".into(),
        [] => "<none>".into(),
        some => some.join(","),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A duration the way kubectl writes it: two units while they matter, then one. A second into the future is still now.
fn age(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        pair(days, "d", hours % 24, "h")
    } else if days < 730 {
        format!("{days}d")
    } else if days < 2920 {
        pair(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_counts_pairs_and_labels_as_kubectl_shows_them() {
        let object = serde_json::json!({
            "data": { "a": "1", "b": "2" }, "binaryData": { "c": "" }, "kind": "Pod", "name": "p",
            "ports": [{ "port": 80, "protocol": "TCP" }, { "port": 53, "protocol": "UDP" }],
            "selector": { "app": "x", "tier": "y" }, "at": "2026-01-01T00:00:00Z",
        });
        for (format, path, text) in [
            (COUNT, ".data+.binaryData", json!(3)),
            (COUNT, ".none", json!(0)),
            (LOWER_PAIR, ".kind+.name", json!("pod/p")),
            (PAIR, ".ports[*].port+.ports[*].protocol", json!("80/TCP,53/UDP")),
            (LABELS, ".selector|=<none>", json!("app=x,tier=y")),
            (LABELS, ".none|=<none>", json!("<none>")),
            (STAMP, ".at", json!("2026-01-01T00:00:00Z")),
            ("string", ".none|.name", json!("p")),
            ("string", ".none", Value::Null),
        ] {
            let column = Column { name: "", path, format, priority: 0 };
            assert_eq!(cell(&column, &object, Timestamp::UNIX_EPOCH), text, "{format} {path}");
        }
    }

    #[test]
    fn many_endpoints_are_shown_in_part() {
        let ip = |ip: &str| json!({ "ip": ip });
        let object = json!({ "subsets": [
            { "addresses": [ip("1.1.1.1"), ip("1.1.1.2")], "ports": [{ "port": 80 }, { "port": 81 }] },
            { "notReadyAddresses": [ip("1.1.1.3")], "ports": [{ "port": 80 }] }] });
        assert_eq!(endpoints(&object), "1.1.1.1:80,1.1.1.2:80,1.1.1.1:81 + 1 more...");
        assert_eq!(endpoints(&json!({})), "<none>");
    }

    #[test]
    fn a_service_shows_how_it_is_reached() {
        for (spec, status, ports, outside) in [
            (json!({ "type": "ClusterIP" }), json!({}), "<none>", "<none>"),
            (json!({ "type": "ExternalName", "externalName": "a.b" }), json!({}), "<none>", "a.b"),
            (
                json!({ "type": "LoadBalancer", "ports": [{ "port": 80, "nodePort": 30080, "protocol": "TCP" },
                    { "port": 53, "protocol": "UDP" }] }),
                json!({}),
                "80:30080/TCP,53/UDP",
                "<pending>",
            ),
            (
                json!({ "type": "LoadBalancer", "externalIPs": ["1.2.3.4"] }),
                json!({ "loadBalancer": { "ingress": [{ "ip": "127.0.0.1" }, { "hostname": "a.b" }] } }),
                "<none>",
                "127.0.0.1,a.b,1.2.3.4",
            ),
        ] {
            let service = json!({ "spec": spec, "status": status });
            assert_eq!(
                (service_ports(&service).as_str(), service_outside(&service).as_str()),
                (ports, outside)
            );
        }
    }

    #[test]
    fn an_age_is_written_as_kubectl_writes_it() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (49 * 3600, "2d1h"),
            (8 * 86400, "8d"),
            (800 * 86400, "2y70d"),
            (3000 * 86400, "8y"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }
}
