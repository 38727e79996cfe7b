//! The types of values, as a schema declares them.

use std::fmt;

use serde_json::Value;

use crate::CompileError;
use crate::value::CelValue;

/// A kind of values.
#[derive(Debug, Clone)]
pub enum CelType<'a> {
    /// Anything: nothing is said about it before it is there.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    Quantity,
    Ip,
    Cidr,
    Url,
    /// That a text can be held against.
    Format,
    Type(Box<CelType<'a>>),
    List(Box<CelType<'a>>),
    Map(Box<CelType<'a>>, Box<CelType<'a>>),
    Optional(Box<CelType<'a>>),
    /// With the fields of a schema; `whole`: and those that every object of its own has.
    Object {
        schema: &'a Value,
        whole: bool,
    },
    /// The type of a complete object.
    Metadata,
}

impl<'a> CelType<'a> {
    /// The type of a schema; `None` if a rule cannot use it.
    pub fn of(schema: &'a Value, whole: bool) -> Option<Self> {
        if schema["x-kubernetes-int-or-string"] == true {
            return Some(Self::Dyn);
        }
        let whole = whole || schema["x-kubernetes-embedded-resource"] == true;
        let format = schema["format"].as_str().unwrap_or("");
        Some(match schema["type"].as_str()? {
            "object" if schema["additionalProperties"].is_object() => {
                Self::Map(Self::String.into(), Self::of(&schema["additionalProperties"], false)?.into())
            }
            "object" => Self::Object { schema, whole },
            "array" => Self::List(Self::of(&schema["items"], false)?.into()),
            "string" => match format {
                "date" | "date-time" => Self::Timestamp,
                "duration" => Self::Duration,
                "byte" => Self::Bytes,
                _ => Self::String,
            },
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            _ => return None,
        })
    }

    /// Whether a value of one kind can stand where one of the other does.
    pub fn is_assignable_to(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(one), Self::List(two)) | (Self::Optional(one), Self::Optional(two)) => {
                one.is_assignable_to(two)
            }
            (Self::Type(_), Self::Type(_)) => true,
            (Self::Map(key, value), Self::Map(other_key, other_value)) => {
                key.is_assignable_to(other_key) && value.is_assignable_to(other_value)
            }
            (Self::Object { schema, .. }, Self::Object { schema: other, .. }) => std::ptr::eq(*schema, *other),
            (Self::Null, other) | (other, Self::Null) => matches!(
                other,
                Self::Null
                    | Self::Object { .. }
                    | Self::Metadata
                    | Self::Duration
                    | Self::Timestamp
                    | Self::Quantity
                    | Self::Ip
                    | Self::Cidr
                    | Self::Url
                    | Self::Format
                    | Self::Optional(_)
            ),
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        }
    }

    pub(crate) fn has_order(&self) -> bool {
        use CelType::{Bool, Bytes, Double, Duration, Dyn, Int, String, Timestamp, Uint};
        matches!(self, Dyn | Bool | Int | Uint | Double | String | Bytes | Duration | Timestamp)
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    pub(crate) fn of_value(value: &CelValue) -> Self {
        match value {
            CelValue::Null => Self::Null,
            CelValue::Bool(_) => Self::Bool,
            CelValue::Int(_) => Self::Int,
            CelValue::Uint(_) => Self::Uint,
            CelValue::Double(_) => Self::Double,
            CelValue::String(_) => Self::String,
            CelValue::Bytes(_) => Self::Bytes,
            CelValue::Type(_) => Self::Type(Self::Dyn.into()),
            // No literal is one of these.
            _ => Self::Dyn,
        }
    }

    /// The kind of a field; what is in something optional is optional.
    pub(crate) fn field(&self, name: &str, at: usize) -> Result<Self, CompileError> {
        let undefined = || Err(CompileError::new(at, format!("undefined field '{name}'")));
        match self {
            Self::Dyn => Ok(Self::Dyn),
            Self::Map(_, value) => Ok(Self::clone(value)),
            Self::Optional(inner) => Ok(optional(inner.field(name, at)?)),
            Self::Object { whole: true, .. } if ["apiVersion", "kind"].contains(&name) => Ok(Self::String),
            Self::Object { whole: true, .. } if name == "metadata" => Ok(Self::Metadata),
            Self::Object { schema, .. } => {
                let known = schema["properties"].get(name).and_then(|schema| Self::of(schema, false));
                known.map_or_else(undefined, Ok)
            }
            Self::Metadata if ["name", "generateName"].contains(&name) => Ok(Self::String),
            Self::Metadata => undefined(),
            other => Err(CompileError::new(at, format!("type '{other}' does not support field selection"))),
        }
    }
}

impl fmt::Display for CelType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "duration",
            Self::Timestamp => "timestamp",
            Self::Quantity => "kubernetes.Quantity",
            Self::Ip => "net.IP",
            Self::Cidr => "net.CIDR",
            Self::Url => "kubernetes.URL",
            Self::Format => "kubernetes.NamedFormat",
            Self::Object { .. } | Self::Metadata => "object",
            Self::Type(of) => return write!(f, "type({of})"),
            Self::List(of) => return write!(f, "list({of})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
            Self::Optional(of) => return write!(f, "optional_type({of})"),
        })
    }
}

pub(crate) fn optional(kind: CelType<'_>) -> CelType<'_> {
    if matches!(kind, CelType::Optional(_)) { kind } else { CelType::Optional(kind.into()) }
}
