//! Messages of `pgoutput`, version 1, as PostgreSQL documents them.

/// The description of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Relation {
    pub(super) id: u32,
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// The OID of its type.
    pub(super) kind: u32,
    pub(super) is_key: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ColumnValue {
    Null,
    /// A large value that did not change is not sent.
    Unchanged,
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Insert,
    Update,
    Delete,
    Truncate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) relation: u32,
    pub(super) operation: Operation,
    /// The replica identity: the key, or the whole row.
    pub(super) old: Option<Vec<ColumnValue>>,
    pub(super) new: Option<Vec<ColumnValue>>,
}

impl Row {
    pub(super) fn truncate(relation: u32) -> Row {
        Row { relation, operation: Operation::Truncate, old: None, new: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowChange {
    /// `position` is where the transaction commits; `time` is microseconds since 2000.
    Begin {
        position: u64,
        time: i64,
    },
    /// `end` is the position after the transaction.
    Commit {
        end: u64,
    },
    Relation(Relation),
    Row(Row),
    Truncate {
        relations: Vec<u32>,
    },
    Other,
}

/// Reads one message. No bytes of a peer panic here.
pub(super) fn parse(bytes: &[u8]) -> Result<RowChange, String> {
    let mut reader = FieldReader(bytes);
    match reader.u8()? {
        b'B' => {
            let (position, time) = (reader.u64()?, reader.u64()?);
            Ok(RowChange::Begin { position, time: time.cast_signed() })
        }
        b'C' => {
            // Flags and the position of the commit come first.
            reader.u8()?;
            reader.u64()?;
            Ok(RowChange::Commit { end: reader.u64()? })
        }
        b'R' => {
            let (id, schema, table) = (reader.u32()?, reader.text()?, reader.text()?);
            reader.u8()?;
            let count = reader.u16()?;
            let mut columns = Vec::new();
            for _ in 0..count {
                let is_key = reader.u8()? & 1 == 1;
                let (name, kind) = (reader.text()?, reader.u32()?);
                reader.u32()?;
                columns.push(Column { name, kind, is_key });
            }
            let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
            Ok(RowChange::Relation(Relation { id, schema, table, columns }))
        }
        b'I' => row(&mut reader, Operation::Insert),
        b'U' => row(&mut reader, Operation::Update),
        b'D' => row(&mut reader, Operation::Delete),
        b'T' => {
            let count = reader.u32()?;
            reader.u8()?;
            let relations: Result<Vec<u32>, String> = (0..count).map(|_| reader.u32()).collect();
            Ok(RowChange::Truncate { relations: relations? })
        }
        // Types, origins and messages.
        _ => Ok(RowChange::Other),
    }
}

fn row(reader: &mut FieldReader<'_>, operation: Operation) -> Result<RowChange, String> {
    let mut row = Row { relation: reader.u32()?, operation, old: None, new: None };
    while !reader.0.is_empty() {
        match reader.u8()? {
            b'K' | b'O' => row.old = Some(reader.values()?),
            b'N' => row.new = Some(reader.values()?),
            other => return Err(format!("part {other:#x} of a row is unknown")),
        }
    }
    Ok(RowChange::Row(row))
}

struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn take(&mut self, bytes: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or("the message is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_be_bytes)
    }

    /// Up to the zero byte.
    fn text(&mut self) -> Result<String, String> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or("a text has no end")?;
        let text = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.u8()?;
        Ok(text)
    }

    fn values(&mut self) -> Result<Vec<ColumnValue>, String> {
        let count = self.u16()?;
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(match self.u8()? {
                b'n' => ColumnValue::Null,
                b'u' => ColumnValue::Unchanged,
                b't' => {
                    let bytes = self.u32()? as usize;
                    ColumnValue::Text(String::from_utf8_lossy(self.take(bytes)?).into_owned())
                }
                other => return Err(format!("value {other:#x} is unknown")),
            });
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> Vec<u8> {
        let mut bytes = b"U".to_vec();
        bytes.extend(7u32.to_be_bytes());
        bytes.extend(b"K\0\x01t\0\0\0\x011N\0\x03t\0\0\0\x02\xc3\xa4nu");
        bytes
    }

    #[test]
    fn update_has_its_key_and_its_new_row() {
        let wanted = Row {
            relation: 7,
            operation: Operation::Update,
            old: Some(vec![ColumnValue::Text("1".to_owned())]),
            new: Some(vec![ColumnValue::Text("ä".to_owned()), ColumnValue::Null, ColumnValue::Unchanged]),
        };
        assert_eq!(parse(&update()), Ok(RowChange::Row(wanted)));
    }

    #[test]
    fn cut_or_changed_message_is_an_error_and_no_panic() {
        let message = update();
        for end in 0..message.len() {
            let _ = parse(&message[..end]);
        }
        let mut rng = 1u32;
        for _ in 0..20_000 {
            let mut bytes = message.clone();
            for _ in 0..3 {
                rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = rng as usize % bytes.len();
                bytes[at] = (rng >> 16) as u8;
            }
            bytes[0] = b"BCRIUDT"[rng as usize % 7];
            let _ = parse(&bytes);
        }
    }
}
