//! A changed row as an event.

use adapter::Event;

use super::pgoutput::{Column, ColumnValue, Operation, Relation, Row};

/// Where a row stands: the same at each delivery.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CommitPosition {
    /// The LSN of the commit.
    pub(super) commit: u64,
    /// Of the commit, in microseconds since 2000.
    pub(super) time: i64,
    /// The number of the row in its transaction.
    pub(super) row: u64,
}

/// Seconds from 1970 to 2000.
const EPOCH_SECONDS: i64 = 946_684_800;

mod kind {
    pub(super) const BOOL: u32 = 16;
    pub(super) const NUMBERS: [u32; 7] = [20, 21, 23, 26, 700, 701, 1700];
    pub(super) const JSON: [u32; 2] = [114, 3802];
}

pub(super) fn event_of(source: &str, relation: &Relation, row: &Row, position: &CommitPosition) -> Event {
    let operation = match row.operation {
        Operation::Insert => "insert",
        Operation::Update => "update",
        Operation::Delete => "delete",
        Operation::Truncate => "truncate",
    };
    let commit = position.commit;
    let id = format!("{:X}/{:X}:{}", commit >> 32, commit & 0xffff_ffff, position.row);
    let mut data = format!(
        "{{\"operation\":\"{operation}\",\"schema\":{},\"table\":{}",
        quote(&relation.schema),
        quote(&relation.table)
    );
    for (name, values) in [("old", &row.old), ("new", &row.new)] {
        if let Some(values) = values {
            data.push_str(&format!(",\"{name}\":{}", object(&relation.columns, values, name == "old")));
        }
    }
    data.push('}');
    let mut event = Event::new(format!("dev.sluicegate.postgresql.{operation}"), source, id)
        .with("subject", format!("{}.{}", relation.schema, relation.table))
        .with_data("application/json", data);
    let seconds = EPOCH_SECONDS.checked_add(position.time.div_euclid(1_000_000));
    let nanoseconds = i32::try_from(position.time.rem_euclid(1_000_000) * 1000);
    if let (Some(seconds), Ok(nanoseconds)) = (seconds, nanoseconds)
        && let Ok(time) = jiff::Timestamp::new(seconds, nanoseconds)
    {
        event.set("time", time.to_string());
    }
    event
}

/// A key of the old row has null in the other columns, which say nothing and are left out.
fn object(columns: &[Column], values: &[ColumnValue], leaves_out_null: bool) -> String {
    let mut json = String::from("{");
    for (column, value) in columns.iter().zip(values) {
        let text = match value {
            // The server did not send it, so the event does not name it.
            ColumnValue::Unchanged => continue,
            ColumnValue::Null if leaves_out_null => continue,
            ColumnValue::Null => "null".to_owned(),
            ColumnValue::Text(text) => value_json(column.kind, text),
        };
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&format!("{}:{text}", quote(&column.name)));
    }
    json.push('}');
    json
}

/// The text of a value as JSON: numbers with all their digits, JSON as it is, everything else as text.
fn value_json(kind: u32, text: &str) -> String {
    match kind {
        kind::BOOL => if text == "t" { "true" } else { "false" }.to_owned(),
        // NaN and infinity have no form in JSON, and a value that is no JSON would make the whole data malformed.
        kind if kind::NUMBERS.contains(&kind)
            && text.ends_with(|last: char| last.is_ascii_digit())
            && is_json(text) =>
        {
            text.to_owned()
        }
        kind if kind::JSON.contains(&kind) && is_json(text) => text.to_owned(),
        _ => quote(text),
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Changes of one row stay in order: the table and the key of the row.
pub(super) fn row_key(relation: &Relation, row: &Row) -> String {
    let values = row.old.as_ref().or(row.new.as_ref());
    let mut key = relation.id.to_string();
    for (column, value) in relation.columns.iter().zip(values.into_iter().flatten()) {
        if let (true, ColumnValue::Text(text)) = (column.is_key, value) {
            key.push_str(&format!(":{}:{text}", text.len()));
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation() -> Relation {
        let column = |name: &str, kind, is_key| Column { name: name.to_owned(), kind, is_key };
        let columns =
            vec![column("id", 23, true), column("n", 1700, false), column("j", 3802, false), column("t", 25, false)];
        Relation { id: 1, schema: "public".to_owned(), table: "o".to_owned(), columns }
    }

    fn text(text: &str) -> ColumnValue {
        ColumnValue::Text(text.to_owned())
    }

    #[test]
    fn row_is_typed_json_with_all_digits() {
        let row = Row {
            relation: 1,
            operation: Operation::Update,
            old: Some(vec![text("1"), ColumnValue::Null, ColumnValue::Null, ColumnValue::Null]),
            new: Some(vec![text("2"), text("1.10000000000000000001"), text("{\"a\": 1}"), ColumnValue::Unchanged]),
        };
        let position = CommitPosition { commit: 0x1_0000_00AB, time: 1_500_000, row: 3 };
        let event = event_of("postgresql://h/d", &relation(), &row, &position);
        assert_eq!(
            std::str::from_utf8(event.data.as_deref().unwrap()).unwrap(),
            "{\"operation\":\"update\",\"schema\":\"public\",\"table\":\"o\",\"old\":{\"id\":1},\
             \"new\":{\"id\":2,\"n\":1.10000000000000000001,\"j\":{\"a\": 1}}}"
        );
        assert_eq!((event.id(), event.text("time")), ("1/AB:3".to_owned(), "2000-01-01T00:00:01.5Z".to_owned()));
        assert_eq!(event.text("subject"), "public.o");
    }

    #[test]
    fn number_without_json_form_is_text() {
        for (kind, text, wanted) in [
            (1700, "NaN", "\"NaN\""),
            (701, "-Infinity", "\"-Infinity\""),
            (701, "1e+20", "1e+20"),
            (23, "-7", "-7"),
            (1700, "0},\"x\":1", "\"0},\\\"x\\\":1\""),
            (20, "1 2", "\"1 2\""),
            (3802, "{\"a\"", "\"{\\\"a\\\"\""),
            (16, "t", "true"),
            (25, "7", "\"7\""),
        ] {
            assert_eq!(value_json(kind, text), wanted);
        }
    }

    #[test]
    fn update_and_delete_of_a_row_have_its_key() {
        let insert = Row {
            relation: 1,
            operation: Operation::Insert,
            old: None,
            new: Some(vec![text("1"), ColumnValue::Null, ColumnValue::Null, text("x")]),
        };
        let delete = Row {
            operation: Operation::Delete,
            old: Some(vec![text("1"), ColumnValue::Null, ColumnValue::Null, ColumnValue::Null]),
            new: None,
            ..insert.clone()
        };
        assert_eq!(row_key(&relation(), &insert), row_key(&relation(), &delete));
    }
}
