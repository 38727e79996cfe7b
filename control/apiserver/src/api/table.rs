//! `Table` output: what `kubectl get` prints, computed by the server.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::store::StoredObject;
use types::kind_registry::KindMeta;
use types::printer_column::{
    ACCESS_MODES, COUNT, ENDPOINTS, FIRST_FEW, LABELS, LOWER_PAIR, PAIR, PrinterColumn, RATIO,
    SERVICE_EXTERNAL_ADDRESSES, SERVICE_PORTS, STAMP,
};

use super::content_negotiation;
use super::jsonpath::{JsonPath, PathBudget};
use super::query_parameters::IncludeObject;

/// Entries of a cell that shows some of many; kubectl's figure.
const CELL_ENTRIES_MAX: usize = 3;

/// A column, with its paths understood.
struct ColumnReader<'a> {
    column: &'a PrinterColumn,
    parts: Vec<ColumnPart<'a>>,
}

enum ColumnPart<'a> {
    Path(JsonPath),
    Literal(&'a str),
}

/// A table of `objects`; ages are counted until `now`.
pub(super) fn render(
    meta: &KindMeta,
    objects: &[&StoredObject],
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
    let mut columns: Vec<Value> = if has_own_name_column(meta) { Vec::new() } else { vec![named] };
    let readings: Vec<ColumnReader<'_>> = meta.columns.iter().map_while(ColumnReader::of).collect();
    columns.extend(readings.iter().map(|reading| {
        let column = reading.column;
        let described = match column.custom {
            Some(client) => client.description.into(),
            None => format!("{} of the {}", column.name, meta.kind),
        };
        json!({
            "name": column.name,
            "type": column_type(column),
            "format": column.custom.map_or("", |client| client.format),
            "description": described,
            "priority": column.priority,
        })
    }));
    let mut table = json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": version },
        "columnDefinitions": columns,
    });
    // Moved, like what is in them: the macro would copy all of ten thousand objects at each level.
    table["rows"] = objects.iter().map(|object| row(meta, &readings, object, include, now)).collect();
    table
}

fn row(
    meta: &KindMeta,
    readings: &[ColumnReader<'_>],
    object: &StoredObject,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let mut cells = if has_own_name_column(meta) { Vec::new() } else { vec![Value::from(&*object.key.name)] };
    let mut value = object.value();
    let mut budget = PathBudget::of(object.json_bytes());
    cells.extend(readings.iter().map(|reading| reading.cell(&value, now, &mut budget)));
    let mut row = json!({});
    row["cells"] = cells.into();
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => row["object"] = content_negotiation::partial(value["metadata"].take()),
        IncludeObject::Object => row["object"] = value,
    }
    row
}

/// The kind says itself where the name stands. A client's column of that name is one more.
fn has_own_name_column(meta: &KindMeta) -> bool {
    meta.columns.iter().any(|column| column.name == "Name" && column.custom.is_none())
}

fn column_type(column: &PrinterColumn) -> &str {
    match column.format {
        RATIO
        | COUNT
        | PAIR
        | LOWER_PAIR
        | LABELS
        | ENDPOINTS
        | FIRST_FEW
        | SERVICE_PORTS
        | SERVICE_EXTERNAL_ADDRESSES
        | ACCESS_MODES => "string",
        STAMP => "date",
        other => other,
    }
}

impl<'a> ColumnReader<'a> {
    /// `None` for a path that cannot be understood: as in Kubernetes, the table ends before that column.
    fn of(column: &'a PrinterColumn) -> Option<Self> {
        let part = |text: &'a str| match text.strip_prefix('=') {
            Some(literal) => Some(ColumnPart::Literal(literal)),
            None => JsonPath::parse(text).map(ColumnPart::Path),
        };
        let parts = match column.custom {
            Some(_) => vec![ColumnPart::Path(JsonPath::parse(column.path)?)],
            None => column.path.split(['|', '+']).map(part).collect::<Option<_>>()?,
        };
        Some(Self { column, parts })
    }

    /// The results of each path.
    fn evaluate<'v>(&'v self, object: &'v Value, budget: &'v mut PathBudget) -> impl Iterator<Item = Vec<&'v Value>> {
        self.parts.iter().filter_map(move |part| match part {
            ColumnPart::Path(path) => Some(path.find(object, budget)),
            ColumnPart::Literal(_) => None,
        })
    }

    fn cell(&self, object: &Value, now: Timestamp, budget: &mut PathBudget) -> Value {
        if self.column.custom.is_some() {
            let found = self.evaluate(object, budget).next();
            let first = found.and_then(|found| found.first().copied());
            let cell = first.map_or(Value::Null, |first| typed_cell(self.column.format, first, now));
            let is_shown = cell.as_str().is_none_or(|text| budget.take_output(text.len()));
            return if is_shown { cell } else { Value::Null };
        }
        match self.column.format {
            COUNT => self.evaluate(object, budget).flatten().map(size).sum::<usize>().into(),
            PAIR | LOWER_PAIR => self.pairs(object, budget).into(),
            ENDPOINTS => endpoints(object).into(),
            FIRST_FEW => first_few(self.evaluate(object, budget).flatten().map(plain).collect()).into(),
            SERVICE_PORTS => service_ports(object).into(),
            ACCESS_MODES => access_modes(self.evaluate(object, budget).flatten()).into(),
            SERVICE_EXTERNAL_ADDRESSES => external_addresses(object).into(),
            _ => self.first_present(object, now, budget),
        }
    }

    fn first_present(&self, object: &Value, now: Timestamp, budget: &mut PathBudget) -> Value {
        let mut choices = self.parts.iter().map(|part| match part {
            ColumnPart::Literal(literal) => Err(*literal),
            ColumnPart::Path(path) => Ok(path.find(object, budget)),
        });
        let found = match choices.find(|found| found.as_ref().map_or(true, |found| !found.is_empty())) {
            Some(Ok(found)) => found,
            Some(Err(literal)) => return literal.into(),
            None => return Value::Null,
        };
        let [first, ..] = found.as_slice() else { return Value::Null };
        match self.column.format {
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

    fn pairs(&self, object: &Value, budget: &mut PathBudget) -> String {
        let mut found = self.evaluate(object, budget);
        let (one, other) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
        let shown = one.into_iter().zip(other).map(|(one, other)| {
            let one = plain(one);
            let one = if self.column.format == LOWER_PAIR { one.to_lowercase() } else { one };
            format!("{one}/{}", plain(other))
        });
        shown.collect::<Vec<_>>().join(",")
    }
}

/// The first of what a client's path finds, as the type that its definition names; what is of another stays empty.
fn typed_cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::Null) => "<no value>".into(),
        ("string", Value::Number(number)) if number.as_i64().is_none() => {
            number.as_f64().map_or(Value::Null, |number| cel::double(number).into())
        }
        ("string", value) => plain(value).into(),
        ("integer", Value::Number(number)) => {
            let whole = number.as_i64().or_else(|| number.as_f64().map(|number| number as i64));
            whole.map_or(Value::Null, Value::from)
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.is_empty() => "<unknown>".into(),
        ("date", Value::String(text)) => text
            .parse::<Timestamp>()
            .map_or("<invalid>".into(), |stamp| age(now.as_second() - stamp.as_second()).into()),
        _ => Value::Null,
    }
}

fn size(value: &Value) -> usize {
    value.as_object().map_or_else(|| value.as_array().map_or(0, Vec::len), serde_json::Map::len)
}

/// The first few of many.
fn first_few(all: Vec<String>) -> String {
    if all.is_empty() {
        return "<none>".into();
    }
    let shown = all.iter().take(CELL_ENTRIES_MAX).cloned().collect::<Vec<_>>().join(",");
    if all.len() > CELL_ENTRIES_MAX { format!("{shown} + {} more...", all.len() - CELL_ENTRIES_MAX) } else { shown }
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
    first_few(all)
}

/// `RWO,ROX`: the first letters of `ReadWriteOnce` and `ReadOnlyMany`, where `Many` is an X.
fn access_modes<'v>(modes: impl Iterator<Item = &'v Value>) -> String {
    let short = |mode: &Value| {
        let letters: String = mode.as_str().unwrap_or_default().chars().filter(char::is_ascii_uppercase).collect();
        letters.strip_suffix('M').map(|start| format!("{start}X")).unwrap_or(letters)
    };
    modes.map(short).collect::<Vec<_>>().join(",")
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

fn external_addresses(service: &Value) -> String {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return plain(&spec["externalName"]);
    }
    let balanced = spec["type"] == "LoadBalancer";
    let entries = service["status"]["loadBalancer"]["ingress"].as_array().filter(|_| balanced);
    let entry = |entry: &Value| plain(if entry["ip"].is_string() { &entry["ip"] } else { &entry["hostname"] });
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
    use types::printer_column::CustomColumn;

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
            let column = PrinterColumn { format, ..types::printer_column::column("", path) };
            let reading = ColumnReader::of(&column).unwrap();
            let cell = reading.cell(&object, Timestamp::UNIX_EPOCH, &mut PathBudget::of(1000));
            assert_eq!(cell, text, "{format} {path}");
        }
    }

    #[test]
    fn a_clients_cell_is_of_the_type_that_its_column_names() {
        let object = json!({
            "n": 5, "f": 2.5, "big": 1e21, "on": true, "text": "5", "at": "1969-12-31T23:59:00Z", "empty": "", "none": null,
            "list": ["a", "b"], "map": { "b": 1, "a": [true] },
        });
        for (kind, path, cell) in [
            ("integer", ".n", json!(5)),
            ("integer", ".f", json!(2)),
            ("integer", ".text", Value::Null),
            ("integer", ".missing", Value::Null),
            ("number", ".f", json!(2.5)),
            ("number", ".n", json!(5)),
            ("number", ".on", Value::Null),
            ("boolean", ".on", json!(true)),
            ("boolean", ".text", Value::Null),
            ("date", ".at", json!("60s")),
            ("date", ".text", json!("<invalid>")),
            ("date", ".empty", json!("<unknown>")),
            ("date", ".n", Value::Null),
            ("date", ".missing", Value::Null),
            ("string", ".text", json!("5")),
            ("string", ".n", json!("5")),
            ("string", ".f", json!("2.5")),
            ("string", ".big", json!("1e+21")),
            ("string", ".on", json!("true")),
            ("string", ".none", json!("<no value>")),
            ("string", ".list", json!("[\"a\",\"b\"]")),
            ("string", ".map", json!("{\"a\":[true],\"b\":1}")),
            // Of several, the first.
            ("string", ".list[*]", json!("a")),
            ("string", ".list[-1:]", json!("b")),
            ("string", ".text|.n", Value::Null),
            ("string", ".missing", Value::Null),
        ] {
            let client = Some(CustomColumn { description: "", format: "" });
            let column = PrinterColumn { format: kind, custom: client, ..types::printer_column::column("", path) };
            let found =
                ColumnReader::of(&column).unwrap().cell(&object, Timestamp::UNIX_EPOCH, &mut PathBudget::of(1000));
            assert_eq!(found, cell, "{kind} {path}");
        }
    }

    /// A dot in a name is not a separator: the paths of our own kinds look up the name as it is.
    #[test]
    fn our_own_columns_are_all_read_and_find_names_with_dots() {
        let label = "serving.knative.dev/configuration";
        let object = json!({ "metadata": { "labels": { label: "c", "serving.knative.dev/configurationGeneration": "7" },
            "annotations": { "eventing.knative.dev/broker.class": "Sluicegate" } } });
        let mut found = Vec::new();
        for entry in &types::registry().entries {
            for column in entry.meta.columns {
                let reading = ColumnReader::of(column).unwrap_or_else(|| panic!("{} {}", entry.meta.kind, column.path));
                if column.path.contains('[') && column.path.contains("knative") {
                    found.push(reading.cell(&object, Timestamp::UNIX_EPOCH, &mut PathBudget::of(1000)));
                }
            }
        }
        found.sort_by_key(Value::to_string);
        assert_eq!(found, ["7", "Sluicegate", "c"]);
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
            assert_eq!((service_ports(&service).as_str(), external_addresses(&service).as_str()), (ports, outside));
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
