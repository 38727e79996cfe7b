//! What kinds of values a rule's parts have, told from the schema before there is an object: a field that is not there, or
//! a function that does not fit, is refused with the definition. Words are those of Kubernetes.

use std::fmt;

use serde_json::Value;

use super::Mistake;
use super::cost::Kinds;
use super::format;
use super::overloads;
use super::parse::{Each, Expr, What};
use super::value::Val;

/// A kind of values.
#[derive(Debug, Clone)]
pub(crate) enum Kind<'a> {
    /// Anything: nothing is said about it before it is there.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Moment,
    Quantity,
    Address,
    Range,
    Url,
    /// That a text can be held against.
    Format,
    Type(Box<Kind<'a>>),
    List(Box<Kind<'a>>),
    Map(Box<Kind<'a>>, Box<Kind<'a>>),
    Optional(Box<Kind<'a>>),
    /// With the fields of a schema; `whole`: and those that every object of its own has.
    Object {
        schema: &'a Value,
        whole: bool,
    },
    /// Of an object of its own.
    Metadata,
}

/// What names stand for, innermost first.
#[derive(Debug)]
pub(super) struct Known<'a, 'b> {
    pub(crate) name: &'b str,
    pub(crate) kind: Kind<'a>,
    pub(crate) outer: Option<&'b Known<'a, 'b>>,
    /// Where the kinds of all parts are noted, if somebody wants them; of the outermost name.
    pub(super) notes: Option<&'b Kinds<'a>>,
}

impl<'a> Known<'a, '_> {
    fn note(&self, expr: &Expr, kind: &Kind<'a>) {
        let mut known = self;
        while let Some(outer) = known.outer {
            known = outer;
        }
        if let Some(notes) = known.notes {
            notes.borrow_mut().insert(expr, kind.clone());
        }
    }

    fn find(&self, name: &str) -> Option<&Kind<'a>> {
        let mut known = self;
        loop {
            if known.name == name {
                return Some(&known.kind);
            }
            known = known.outer?;
        }
    }
}

impl<'a> Kind<'a> {
    /// What a schema says; `None`: nothing that a rule could speak of.
    pub(crate) fn of(schema: &'a Value, whole: bool) -> Option<Self> {
        if schema["x-kubernetes-int-or-string"] == true {
            return Some(Self::Dyn);
        }
        let whole = whole || schema["x-kubernetes-embedded-resource"] == true;
        let format = schema["format"].as_str().unwrap_or("");
        Some(match schema["type"].as_str()? {
            "object" if schema["additionalProperties"].is_object() => {
                Self::Map(Self::Text.into(), Self::of(&schema["additionalProperties"], false)?.into())
            }
            "object" => Self::Object { schema, whole },
            "array" => Self::List(Self::of(&schema["items"], false)?.into()),
            "string" => match format {
                "date" | "date-time" => Self::Moment,
                "duration" => Self::Duration,
                "byte" => Self::Bytes,
                _ => Self::Text,
            },
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            _ => return None,
        })
    }

    /// Whether a value of one kind can stand where one of the other does.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(one), Self::List(two)) | (Self::Optional(one), Self::Optional(two)) => one.fits(two),
            (Self::Type(_), Self::Type(_)) => true,
            (Self::Map(key, value), Self::Map(other_key, other_value)) => {
                key.fits(other_key) && value.fits(other_value)
            }
            (Self::Object { schema, .. }, Self::Object { schema: other, .. }) => {
                std::ptr::eq(*schema, *other)
            }
            (Self::Null, other) | (other, Self::Null) => matches!(
                other,
                Self::Null
                    | Self::Object { .. }
                    | Self::Metadata
                    | Self::Duration
                    | Self::Moment
                    | Self::Quantity
                    | Self::Address
                    | Self::Range
                    | Self::Url
                    | Self::Format
                    | Self::Optional(_)
            ),
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        }
    }

    pub(super) fn has_order(&self) -> bool {
        use Kind::{Bool, Bytes, Double, Duration, Dyn, Int, Moment, Text, Uint};
        matches!(self, Dyn | Bool | Int | Uint | Double | Text | Bytes | Duration | Moment)
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    fn of_value(value: &Val) -> Self {
        match value {
            Val::Null => Self::Null,
            Val::Bool(_) => Self::Bool,
            Val::Int(_) => Self::Int,
            Val::Uint(_) => Self::Uint,
            Val::Double(_) => Self::Double,
            Val::Text(_) => Self::Text,
            Val::Bytes(_) => Self::Bytes,
            Val::Type(_) => Self::Type(Self::Dyn.into()),
            // No literal is one of these.
            _ => Self::Dyn,
        }
    }

    /// The kind of a field; what is in something optional is optional.
    fn field(&self, name: &str, at: usize) -> Result<Self, Mistake> {
        let undefined = || Err(Mistake::new(at, format!("undefined field '{name}'")));
        match self {
            Self::Dyn => Ok(Self::Dyn),
            Self::Map(_, value) => Ok(Self::clone(value)),
            Self::Optional(inner) => Ok(optional(inner.field(name, at)?)),
            Self::Object { whole: true, .. } if ["apiVersion", "kind"].contains(&name) => Ok(Self::Text),
            Self::Object { whole: true, .. } if name == "metadata" => Ok(Self::Metadata),
            Self::Object { schema, .. } => {
                let known = schema["properties"].get(name).and_then(|schema| Self::of(schema, false));
                known.map_or_else(undefined, Ok)
            }
            Self::Metadata if ["name", "generateName"].contains(&name) => Ok(Self::Text),
            Self::Metadata => undefined(),
            other => Err(Mistake::new(at, format!("type '{other}' does not support field selection"))),
        }
    }
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Duration => "duration",
            Self::Moment => "timestamp",
            Self::Quantity => "kubernetes.Quantity",
            Self::Address => "net.IP",
            Self::Range => "net.CIDR",
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

fn optional(kind: Kind<'_>) -> Kind<'_> {
    if matches!(kind, Kind::Optional(_)) { kind } else { Kind::Optional(kind.into()) }
}

fn unfit<T>(at: usize, name: &str, given: &[&Kind<'_>]) -> Result<T, Mistake> {
    let given: Vec<String> = given.iter().map(ToString::to_string).collect();
    let why = format!("found no matching overload for '{name}' applied to '({})'", given.join(", "));
    Err(Mistake::new(at, why))
}

/// Recursion is bounded by the rule's depth, which reading it bounds.
pub(super) fn kind<'a>(expr: &Expr, known: &Known<'a, '_>) -> Result<Kind<'a>, Mistake> {
    let found = find(expr, known)?;
    known.note(expr, &found);
    Ok(found)
}

fn find<'a>(expr: &Expr, known: &Known<'a, '_>) -> Result<Kind<'a>, Mistake> {
    let at = expr.at;
    match &expr.what {
        What::Literal(value) => Ok(Kind::of_value(value)),
        What::Name(name) => Ok(known.find(name).cloned().unwrap_or(Kind::Dyn)),
        What::Field { of, field, optional: may_lack } => {
            let found = kind(of, known)?.field(field, at)?;
            Ok(if *may_lack { optional(found) } else { found })
        }
        What::Has { of, field } => kind(of, known)?.field(field, at).map(|_| Kind::Bool),
        What::Index { of, index, optional: may_lack } => {
            let found = place(at, &kind(of, known)?, &kind(index, known)?)?;
            Ok(if *may_lack { optional(found) } else { found })
        }
        What::Not(inner) => match kind(inner, known)? {
            Kind::Bool | Kind::Dyn => Ok(Kind::Bool),
            other => unfit(at, "!_", &[&other]),
        },
        What::Minus(inner) => match kind(inner, known)? {
            found @ (Kind::Int | Kind::Double | Kind::Dyn) => Ok(found),
            other => unfit(at, "-_", &[&other]),
        },
        What::And(all) | What::Or(all) => {
            for one in all {
                truth(one, known)?;
            }
            Ok(Kind::Bool)
        }
        What::Choose(test, one, two) => {
            let (test, one, two) = (kind(test, known)?, kind(one, known)?, kind(two, known)?);
            if !test.fits(&Kind::Bool) || !one.fits(&two) {
                return unfit(at, "_?_:_", &[&test, &one, &two]);
            }
            Ok(if matches!(one, Kind::Dyn | Kind::Null) { two } else { one })
        }
        What::Binary(operator, one, two) => {
            let (one, two) = (kind(one, known)?, kind(two, known)?);
            let found = overloads::binary(operator, &one, &two);
            let name = if *operator == "in" { "@in".to_owned() } else { format!("_{operator}_") };
            found.map_or_else(|| unfit(at, &name, &[&one, &two]), Ok)
        }
        What::Call { name, of, given } => call(at, name, of.as_deref(), given, known),
        What::List(items) => Ok(Kind::List(alike(items.iter(), known)?.into())),
        What::Map(pairs) => {
            let keys = alike(pairs.iter().map(|(key, _)| key), known)?;
            let values = alike(pairs.iter().map(|(_, value)| value), known)?;
            Ok(Kind::Map(keys.into(), values.into()))
        }
        What::Each { how: how @ (Each::OptMap | Each::OptFlatMap), of, names, test, .. } => {
            of_optional(*how, of, names, test, known)
        }
        What::Each { how, of, names, test, then } => each(*how, of, names, (test, then.as_deref()), known),
    }
}

fn truth(expr: &Expr, known: &Known<'_, '_>) -> Result<(), Mistake> {
    let found = kind(expr, known)?;
    if found.fits(&Kind::Bool) { Ok(()) } else { Err(expected(expr.at, &Kind::Bool, &found)) }
}

fn expected(at: usize, wanted: &Kind<'_>, found: &Kind<'_>) -> Mistake {
    Mistake::new(at, format!("expected type '{wanted}' but found '{found}'"))
}

/// The kind of all parts, which have to be of one.
fn alike<'a: 'c, 'c>(
    parts: impl Iterator<Item = &'c Expr>,
    known: &Known<'a, '_>,
) -> Result<Kind<'a>, Mistake> {
    let mut all = Kind::Dyn;
    for part in parts {
        let found = kind(part, known)?;
        if !found.fits(&all) {
            return Err(expected(part.at, &all, &found));
        }
        if matches!(all, Kind::Dyn) {
            all = found;
        }
    }
    Ok(all)
}

fn place<'a>(at: usize, of: &Kind<'a>, index: &Kind<'a>) -> Result<Kind<'a>, Mistake> {
    match of {
        Kind::Dyn => Ok(Kind::Dyn),
        Kind::Optional(inner) => Ok(optional(place(at, inner, index)?)),
        Kind::List(item) if index.fits(&Kind::Int) => Ok(Kind::clone(item)),
        Kind::Map(key, value) if index.fits(key) => Ok(Kind::clone(value)),
        _ => unfit(at, "_[_]", &[of, index]),
    }
}

fn call<'a>(
    at: usize,
    name: &str,
    of: Option<&Expr>,
    given: &[Expr],
    known: &Known<'a, '_>,
) -> Result<Kind<'a>, Mistake> {
    let receiver = of.map(|of| kind(of, known)).transpose()?;
    let literal = of.and_then(|of| match &of.what {
        What::Literal(Val::Text(text)) => Some(&**text),
        _ => None,
    });
    if name == "format"
        && let [Expr { what: What::List(values), .. }] = given
    {
        // The one list whose parts may be of several kinds.
        let kinds = values.iter().map(|value| kind(value, known)).collect::<Result<Vec<_>, _>>()?;
        let Some(Kind::Text | Kind::Dyn) = receiver else {
            return unfit(at, name, &[receiver.as_ref().unwrap_or(&Kind::Dyn)]);
        };
        if let Some(text) = literal {
            fill(at, text, values, &kinds)?;
        }
        return Ok(Kind::Text);
    }
    let kinds = given.iter().map(|one| kind(one, known)).collect::<Result<Vec<_>, _>>()?;
    if let Some(pattern) = given.last()
        && name == "matches"
        && let What::Literal(Val::Text(text)) = &pattern.what
        && super::text::is_pattern(text).is_err()
    {
        return Err(Mistake::new(pattern.at, "invalid matches argument"));
    }
    let found = match &receiver {
        Some(of) => overloads::method(name, of, &kinds),
        None => overloads::function(name, &kinds),
    };
    let told = || {
        let given: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        let of = receiver.as_ref().map_or_else(String::new, |of| format!("{of}."));
        let why = format!("found no matching overload for '{name}' applied to '{of}({})'", given.join(", "));
        Mistake::new(at, why)
    };
    found.ok_or_else(told)
}

/// Whether the values go into the places of a text.
fn fill(at: usize, text: &str, values: &[Expr], kinds: &[Kind<'_>]) -> Result<(), Mistake> {
    let parts = format::parts(text).map_err(|why| Mistake::new(at, why))?;
    let places: Vec<_> = parts.iter().filter_map(format::Part::place).collect();
    if places.len() > values.len() {
        return Err(Mistake::new(at, format!("index {} out of range", values.len())));
    }
    if places.len() < values.len() {
        let why = format!(
            "too many arguments supplied to string.format (expected {}, got {})",
            places.len(),
            values.len()
        );
        return Err(Mistake::new(at, why));
    }
    for ((place, value), kind) in places.into_iter().zip(values).zip(kinds) {
        if !place.takes(kind) {
            let why = format!("error during formatting: {}, was given {kind}", place.takes_what());
            return Err(Mistake::new(value.at, why));
        }
    }
    Ok(())
}

fn each<'a>(
    how: Each,
    of: &Expr,
    names: &[String],
    (test, then): (&Expr, Option<&Expr>),
    known: &Known<'a, '_>,
) -> Result<Kind<'a>, Mistake> {
    let (key, value) = match kind(of, known)? {
        Kind::Dyn => (Kind::Dyn, Kind::Dyn),
        Kind::List(item) if names.len() == 1 => (*item, Kind::Dyn),
        Kind::List(item) => (Kind::Int, *item),
        Kind::Map(key, value) => (*key, *value),
        other => {
            let why = format!(
                "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
            );
            return Err(Mistake::new(of.at, why));
        }
    };
    let first = names.first().map_or("", String::as_str);
    let outer = Known { name: first, kind: key.clone(), outer: Some(known), notes: None };
    let second = names.get(1).map(|name| Known { name, kind: value, outer: Some(&outer), notes: None });
    let inner = second.as_ref().unwrap_or(&outer);
    if how == Each::Map {
        let Some(then) = then else { return Ok(Kind::List(kind(test, inner)?.into())) };
        truth(test, inner)?;
        return Ok(Kind::List(kind(then, inner)?.into()));
    }
    truth(test, inner)?;
    Ok(if how == Each::Filter { Kind::List(key.into()) } else { Kind::Bool })
}

/// `optMap` and `optFlatMap`.
fn of_optional<'a>(
    how: Each,
    of: &Expr,
    names: &[String],
    test: &Expr,
    known: &Known<'a, '_>,
) -> Result<Kind<'a>, Mistake> {
    let inner = match kind(of, known)? {
        Kind::Dyn => Kind::Dyn,
        Kind::Optional(inner) => *inner,
        other => return Err(expected(of.at, &optional(Kind::Dyn), &other)),
    };
    let name = names.first().map_or("", String::as_str);
    let found = kind(test, &Known { name, kind: inner, outer: Some(known), notes: None })?;
    match (how, found) {
        (Each::OptMap, found) => Ok(Kind::Optional(found.into())),
        (_, found @ (Kind::Optional(_) | Kind::Dyn)) => Ok(found),
        (_, found) => Err(expected(test.at, &optional(Kind::Dyn), &found)),
    }
}
