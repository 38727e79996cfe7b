//! The operand types of operators and functions, and their result types.

use crate::CelType;
use crate::formats;

/// `None`: the operator does not go with the two.
pub(crate) fn binary<'a>(operator: &str, one: &CelType<'a>, two: &CelType<'a>) -> Option<CelType<'a>> {
    let dynamic = matches!(one, CelType::Dyn) || matches!(two, CelType::Dyn);
    match operator {
        "==" | "!=" => one.is_assignable_to(two).then_some(CelType::Bool),
        "<" | "<=" | ">" | ">=" => {
            let numbers = one.is_number() && two.is_number();
            (one.has_order() && two.has_order() && (numbers || one.is_assignable_to(two))).then_some(CelType::Bool)
        }
        "in" => match two {
            CelType::Dyn => Some(CelType::Bool),
            CelType::List(of) | CelType::Map(of, _) => one.is_assignable_to(of).then_some(CelType::Bool),
            _ => None,
        },
        _ if dynamic => Some(CelType::Dyn),
        "+" => match (one, two) {
            (CelType::String, CelType::String) => Some(CelType::String),
            (CelType::Bytes, CelType::Bytes) => Some(CelType::Bytes),
            (CelType::List(of), CelType::List(other)) => {
                let unknown = matches!(**of, CelType::Dyn);
                one.is_assignable_to(two).then(|| CelType::List(if unknown { other.clone() } else { of.clone() }))
            }
            (CelType::Duration, CelType::Duration) => Some(CelType::Duration),
            (CelType::Timestamp, CelType::Duration) | (CelType::Duration, CelType::Timestamp) => {
                Some(CelType::Timestamp)
            }
            _ => same_number(one, two),
        },
        "-" => match (one, two) {
            (CelType::Duration, CelType::Duration) | (CelType::Timestamp, CelType::Timestamp) => {
                Some(CelType::Duration)
            }
            (CelType::Timestamp, CelType::Duration) => Some(CelType::Timestamp),
            _ => same_number(one, two),
        },
        "%" => same_number(one, two).filter(|kind| !matches!(kind, CelType::Double)),
        _ => same_number(one, two),
    }
}

fn same_number<'a>(one: &CelType<'a>, two: &CelType<'a>) -> Option<CelType<'a>> {
    (one.is_number() && one.is_assignable_to(two)).then(|| one.clone())
}

/// The result type of a method.
pub(crate) fn method<'a>(name: &str, of: &CelType<'a>, given: &[CelType<'a>]) -> Option<CelType<'a>> {
    match of {
        CelType::Dyn => Some(CelType::Dyn),
        CelType::String => string_method(name, given),
        CelType::List(item) => list_method(name, item, given),
        CelType::Map(..) | CelType::Bytes => (name == "size" && given.is_empty()).then_some(CelType::Int),
        CelType::Optional(inner) => match (name, given) {
            ("hasValue", []) => Some(CelType::Bool),
            ("value", []) => Some(CelType::clone(inner)),
            ("orValue", [other]) if other.is_assignable_to(inner) => {
                Some(if matches!(**inner, CelType::Dyn) { other.clone() } else { CelType::clone(inner) })
            }
            ("or", [other]) if other.is_assignable_to(of) => Some(of.clone()),
            _ => None,
        },
        CelType::Timestamp => {
            let zone = given.iter().all(|zone| zone.is_assignable_to(&CelType::String));
            (name.starts_with("get") && zone).then_some(CelType::Int)
        }
        CelType::Duration => {
            let parts = ["getHours", "getMinutes", "getSeconds", "getMilliseconds"];
            (parts.contains(&name) && given.is_empty()).then_some(CelType::Int)
        }
        CelType::Ip if given.is_empty() => match name {
            "family" => Some(CelType::Int),
            "isUnspecified" | "isLoopback" | "isLinkLocalUnicast" | "isLinkLocalMulticast" | "isGlobalUnicast" => {
                Some(CelType::Bool)
            }
            _ => None,
        },
        CelType::Cidr => match (name, given) {
            ("containsIP", [one]) if one.is_assignable_to(&CelType::Ip) || one.is_assignable_to(&CelType::String) => {
                Some(CelType::Bool)
            }
            ("containsCIDR", [one])
                if one.is_assignable_to(&CelType::Cidr) || one.is_assignable_to(&CelType::String) =>
            {
                Some(CelType::Bool)
            }
            ("ip", []) => Some(CelType::Ip),
            ("masked", []) => Some(CelType::Cidr),
            ("prefixLength", []) => Some(CelType::Int),
            _ => None,
        },
        CelType::Url => {
            let parts = ["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"];
            (parts.contains(&name) && given.is_empty()).then_some(CelType::String)
        }
        CelType::Format => {
            let result_type = || CelType::Optional(CelType::List(CelType::String.into()).into());
            matches!((name, given), ("validate", [one]) if one.is_assignable_to(&CelType::String)).then(result_type)
        }
        CelType::Quantity => {
            let other = |kind: &CelType<'_>| kind.is_assignable_to(&CelType::Quantity);
            match (name, given) {
                ("add" | "sub", [one]) if other(one) || one.is_assignable_to(&CelType::Int) => Some(CelType::Quantity),
                ("isGreaterThan" | "isLessThan", [one]) if other(one) => Some(CelType::Bool),
                ("compareTo", [one]) if other(one) => Some(CelType::Int),
                ("sign" | "asInteger", []) => Some(CelType::Int),
                ("isInteger", []) => Some(CelType::Bool),
                _ => None,
            }
        }
        _ => None,
    }
}

fn string_method<'a>(name: &str, given: &[CelType<'a>]) -> Option<CelType<'a>> {
    let fit = |wanted: &[CelType<'a>]| {
        wanted.len() >= given.len() && given.iter().zip(wanted).all(|(one, wanted)| one.is_assignable_to(wanted))
    };
    let (wanted, found): (&[CelType<'a>], CelType<'a>) = match name {
        "size" => (&[], CelType::Int),
        "contains" | "startsWith" | "endsWith" | "matches" => (&[CelType::String], CelType::Bool),
        "find" => (&[CelType::String], CelType::String),
        "findAll" | "split" => (&[CelType::String, CelType::Int], CelType::List(CelType::String.into())),
        "indexOf" | "lastIndexOf" => (&[CelType::String, CelType::Int], CelType::Int),
        "charAt" => (&[CelType::Int], CelType::String),
        "substring" => (&[CelType::Int, CelType::Int], CelType::String),
        "replace" => (&[CelType::String, CelType::String, CelType::Int], CelType::String),
        "lowerAscii" | "upperAscii" | "trim" | "reverse" => (&[], CelType::String),
        "format" => return matches!(given, [CelType::List(_) | CelType::Dyn]).then_some(CelType::String),
        _ => return None,
    };
    fit(wanted).then_some(found)
}

fn list_method<'a>(name: &str, item: &CelType<'a>, given: &[CelType<'a>]) -> Option<CelType<'a>> {
    match (name, given) {
        ("size", []) => Some(CelType::Int),
        ("isSorted", []) if item.has_order() => Some(CelType::Bool),
        ("min" | "max", []) if item.has_order() => Some(item.clone()),
        ("sum", []) if item.is_number() || matches!(item, CelType::Duration | CelType::Dyn) => Some(item.clone()),
        ("indexOf" | "lastIndexOf", [wanted]) if wanted.is_assignable_to(item) => Some(CelType::Int),
        ("join", []) if item.is_assignable_to(&CelType::String) => Some(CelType::String),
        ("join", [between])
            if item.is_assignable_to(&CelType::String) && between.is_assignable_to(&CelType::String) =>
        {
            Some(CelType::String)
        }
        ("reverse", []) => Some(CelType::List(item.clone().into())),
        _ => None,
    }
}

/// The result type of a function.
pub(crate) fn function<'a>(name: &str, given: &[CelType<'a>]) -> Option<CelType<'a>> {
    if formats::argument_count(name) == Some(given.len()) {
        return match given {
            [] => Some(CelType::Format),
            [name, ..] => name.is_assignable_to(&CelType::String).then(|| CelType::Optional(CelType::Format.into())),
        };
    }
    let Some(first) = given.first() else {
        return (name == "optional.none").then(|| CelType::Optional(CelType::Dyn.into()));
    };
    let among = |kinds: &[CelType<'a>], found: CelType<'a>| {
        kinds.iter().any(|kind| first.is_assignable_to(kind)).then_some(found)
    };
    use CelType::{Bool, Bytes, Cidr, Double, Duration, Dyn, Int, Ip, Quantity, String, Timestamp, Uint, Url};
    match name {
        "dyn" => Some(Dyn),
        "type" => Some(CelType::Type(first.clone().into())),
        "optional.of" => Some(CelType::Optional(first.clone().into())),
        "size" | "matches" if matches!(first, Dyn) => Some(if name == "size" { Int } else { Bool }),
        "size" => method(name, first, &given[1..]),
        "matches" => matches!(first, String).then(|| string_method(name, &given[1..])).flatten(),
        "ip" => among(&[String], Ip),
        "cidr" => among(&[String], Cidr),
        "url" => among(&[String], Url),
        "sets.contains" | "sets.equivalent" | "sets.intersects" => match given {
            [one @ (Dyn | CelType::List(_)), two @ (Dyn | CelType::List(_))] if one.is_assignable_to(two) => Some(Bool),
            _ => None,
        },
        "isCIDR" | "isIP" | "isQuantity" | "isURL" => among(&[String], Bool),
        "quantity" => among(&[String], Quantity),
        "bool" => among(&[Bool, String], Bool),
        "bytes" => among(&[Bytes, String], Bytes),
        "double" => among(&[Double, Int, Uint, String], Double),
        "int" => among(&[Int, Uint, Double, String, Timestamp, Duration], Int),
        "uint" => among(&[Uint, Int, Double, String], Uint),
        "string" => among(&[String, Bool, Int, Uint, Double, Bytes, Timestamp, Duration, Ip, Cidr], String),
        "duration" => among(&[Duration, String, Int], Duration),
        "timestamp" => among(&[Timestamp, String, Int], Timestamp),
        _ => None,
    }
}
