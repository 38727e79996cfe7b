//! `Table` output: what `kubectl get` prints, computed by the server.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Column, KindMeta, RATIO};
use crate::store::Stored;

use super::parameters::IncludeObject;
use super::{accept, jsonpath};

/// A table of `objects`; ages are counted until `now`.
pub(super) fn of(
    meta: &KindMeta,
    objects: &[&Stored],
    version: &str,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let mut columns = vec![json!({
        "name": "Name",
        "type": "string",
        "format": "name",
        "description": "Name must be unique within a namespace.",
        "priority": 0,
    })];
    columns.extend(meta.columns.iter().map(|column| {
        json!({
            "name": column.name,
            "type": if column.format == RATIO { "string" } else { column.format },
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
    let mut cells = vec![Value::from(&*object.key.name)];
    cells.extend(meta.columns.iter().map(|column| cell(column, &object.value, now)));
    match include {
        IncludeObject::None => json!({ "cells": cells }),
        IncludeObject::Metadata => json!({ "cells": cells, "object": accept::metadata_only(object) }),
        IncludeObject::Object => json!({ "cells": cells, "object": object.value }),
    }
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let mut choices = column.path.split('|').map(|path| jsonpath::find(path, object));
    let found = choices.find(|found| !found.is_empty()).unwrap_or_default();
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
        _ => found.iter().map(|value| plain(value)).collect::<Vec<_>>().join(",").into(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A duration the way kubectl writes it: two units while they matter, then one.
fn age(seconds: i64) -> String {
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
    fn an_age_is_written_as_kubectl_writes_it() {
        for (seconds, text) in [
            (-5, "0s"),
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
