//! The values of CEL.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use crate::formats::NamedFormat;
use crate::{EvalBudget, EvalError, mismatch};

/// A value of CEL.
#[derive(Debug, Clone)]
pub enum CelValue {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<Vec<CelValue>>),
    Map(Arc<BTreeMap<CelMapKey, CelValue>>),
    Duration(SignedDuration),
    Timestamp(Timestamp),
    /// An amount with a unit, in thousandths.
    Quantity(i128),
    Ip(IpAddr),
    /// Where it starts, and how many bits all in it share.
    Cidr(IpAddr, u8),
    /// As it was written.
    Url(Arc<str>),
    Format(&'static NamedFormat),
    Type(&'static str),
    Optional(Option<Arc<CelValue>>),
}

/// The key of a map's entry. Both kinds of integers are the same key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CelMapKey {
    Bool(bool),
    Number(i128),
    Text(Arc<str>),
}

impl CelMapKey {
    pub(crate) fn of(value: &CelValue) -> Result<Self, EvalError> {
        match value {
            CelValue::Bool(one) => Ok(Self::Bool(*one)),
            CelValue::Int(number) => Ok(Self::Number(i128::from(*number))),
            CelValue::Uint(number) => Ok(Self::Number(i128::from(*number))),
            CelValue::String(text) => Ok(Self::Text(Arc::clone(text))),
            other => mismatch(format!("a {} cannot be the key of a map", other.type_name())),
        }
    }

    pub(crate) fn value(&self) -> CelValue {
        match self {
            Self::Bool(one) => CelValue::Bool(*one),
            Self::Number(number) => i64::try_from(*number)
                .map_or_else(|_| CelValue::Uint(u64::try_from(*number).unwrap_or(0)), CelValue::Int),
            Self::Text(text) => CelValue::String(Arc::clone(text)),
        }
    }
}

impl CelValue {
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::String(text.as_ref().into())
    }

    pub(crate) fn list(items: Vec<Self>) -> Self {
        Self::List(Arc::new(items))
    }

    /// The name of its type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(..) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
        }
    }

    /// A field's value as the field's schema means it. `whole`: an object of its own, of whose metadata a rule sees the
    /// names alone.
    pub fn of(value: &Value, schema: &Value, whole: bool, steps: &mut EvalBudget) -> Result<Self, EvalError> {
        steps.spend(1)?;
        Ok(match value {
            Value::Null => Self::Null,
            Value::Bool(one) => Self::Bool(*one),
            Value::Number(number) => {
                let double = schema["type"] == "number" || number.is_f64();
                match number.as_i64() {
                    Some(number) if !double => Self::Int(number),
                    _ => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
                }
            }
            Value::String(text) => Self::from_format(text, schema["format"].as_str().unwrap_or(""), steps)?,
            Value::Array(items) => {
                let items = items.iter().map(|item| Self::of(item, &schema["items"], false, steps));
                Self::list(items.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let whole = whole || schema["x-kubernetes-embedded-resource"] == true;
                Self::fields(fields, schema, whole, steps)?
            }
        })
    }

    fn fields(
        fields: &Map<String, Value>,
        schema: &Value,
        whole: bool,
        steps: &mut EvalBudget,
    ) -> Result<Self, EvalError> {
        let mut found = BTreeMap::new();
        for (name, value) in fields {
            steps.spend_text(name.len())?;
            let known = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            let value = if whole && name == "metadata" {
                let names = ["name", "generateName"].iter();
                let names = names.filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone())));
                Self::of(&Value::Object(names.collect()), &Value::Null, false, steps)?
            } else {
                Self::of(value, known, false, steps)?
            };
            found.insert(CelMapKey::Text(name.as_str().into()), value);
        }
        Ok(Self::Map(Arc::new(found)))
    }

    /// Text that a schema's `format` says more about.
    fn from_format(text: &str, format: &str, steps: &mut EvalBudget) -> Result<Self, EvalError> {
        steps.spend_text(text.len())?;
        let formed = match format {
            "date-time" => text.parse().ok().map(Self::Timestamp),
            "date" => format!("{text}T00:00:00Z").parse().ok().map(Self::Timestamp),
            "duration" => duration(text).map(Self::Duration),
            "byte" => {
                use base64::Engine as _;
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok();
                bytes.map(|bytes| Self::Bytes(bytes.into()))
            }
            _ => None,
        };
        Ok(formed.unwrap_or_else(|| Self::text(text)))
    }

    /// Whether the two are equal; what is of another type is not.
    pub(crate) fn equals(&self, other: &Self, steps: &mut EvalBudget) -> Result<bool, EvalError> {
        steps.spend(1)?;
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::String(one), Self::String(two)) => {
                steps.spend_text(one.len().min(two.len()))?;
                one == two
            }
            (Self::Bytes(one), Self::Bytes(two)) => {
                steps.spend_text(one.len().min(two.len()))?;
                one == two
            }
            (Self::Format(one), Self::Format(two)) => one.name == two.name,
            (Self::Type(one), Self::Type(two)) => one == two,
            (Self::Duration(one), Self::Duration(two)) => one == two,
            (Self::Timestamp(one), Self::Timestamp(two)) => one == two,
            (Self::Quantity(one), Self::Quantity(two)) => one == two,
            (Self::Ip(one), Self::Ip(two)) => one == two,
            (Self::Cidr(one, bits), Self::Cidr(two, others)) => (one, bits) == (two, others),
            (Self::Url(one), Self::Url(two)) => {
                steps.spend_text(one.len().min(two.len()))?;
                one == two
            }
            (Self::List(one), Self::List(two)) => {
                if one.len() != two.len() {
                    return Ok(false);
                }
                for (one, two) in one.iter().zip(two.iter()) {
                    if !one.equals(two, steps)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Map(one), Self::Map(two)) => {
                if one.len() != two.len() {
                    return Ok(false);
                }
                for (key, one) in one.iter() {
                    if let CelMapKey::Text(text) = key {
                        steps.spend_text(text.len())?;
                    }
                    let Some(two) = two.get(key) else { return Ok(false) };
                    if !one.equals(two, steps)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Optional(one), Self::Optional(two)) => match (one, two) {
                (Some(one), Some(two)) => one.equals(two, steps)?,
                (one, two) => one.is_none() && two.is_none(),
            },
            (one, two) => one.number_order(two) == Some(Ordering::Equal),
        })
    }

    fn number_order(&self, other: &Self) -> Option<Ordering> {
        let whole = |value: &Self| match value {
            Self::Int(number) => Some(i128::from(*number)),
            Self::Uint(number) => Some(i128::from(*number)),
            _ => None,
        };
        if let (Some(one), Some(two)) = (whole(self), whole(other)) {
            return Some(one.cmp(&two));
        }
        let double = |value: &Self| match value {
            Self::Double(number) => Some(*number),
            #[expect(clippy::cast_precision_loss, reason = "as CEL compares them")]
            other => whole(other).map(|number| number as f64),
        };
        double(self)?.partial_cmp(&double(other)?)
    }

    /// Which of the two comes first, if they can be compared.
    pub(crate) fn compare(&self, other: &Self, steps: &mut EvalBudget) -> Result<Ordering, EvalError> {
        let found = match (self, other) {
            (Self::Bool(one), Self::Bool(two)) => Some(one.cmp(two)),
            (Self::String(one), Self::String(two)) => {
                steps.spend_text(one.len().min(two.len()))?;
                Some(one.cmp(two))
            }
            (Self::Bytes(one), Self::Bytes(two)) => {
                steps.spend_text(one.len().min(two.len()))?;
                Some(one.cmp(two))
            }
            (Self::Duration(one), Self::Duration(two)) => Some(one.cmp(two)),
            (Self::Timestamp(one), Self::Timestamp(two)) => Some(one.cmp(two)),
            (Self::Quantity(one), Self::Quantity(two)) => Some(one.cmp(two)),
            (one, two) => one.number_order(two),
        };
        match found {
            Some(found) => Ok(found),
            None => {
                mismatch(format!("no such overload: a {} and a {} have no order", self.type_name(), other.type_name()))
            }
        }
    }
}

/// `1h30m`, `100ms`, `-1.5s`: as Go writes them.
pub(crate) fn duration(text: &str) -> Option<SignedDuration> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut nanoseconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let length = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..length].parse().ok()?;
        rest = &rest[length..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == &rest[..end])?;
        nanoseconds += number * scale;
        rest = &rest[end..];
    }
    let seconds = sign * nanoseconds / 1e9;
    // Three centuries, which is what the type holds in Go.
    (seconds.abs() < 9.2e9).then(|| SignedDuration::from_secs_f64(seconds))
}

/// The error of a function that a value of this type does not have.
pub(crate) fn no_matching_overload<T>(name: &str, of: &CelValue) -> Result<T, EvalError> {
    mismatch(format!("no such overload: {name} of a {}", of.type_name()))
}
