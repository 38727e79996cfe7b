//! Which kinds of values operators and functions take, and what they give.

use super::check::Kind;
use super::formats;

/// `None`: the operator does not go with the two.
pub(super) fn binary<'a>(operator: &str, one: &Kind<'a>, two: &Kind<'a>) -> Option<Kind<'a>> {
    let dynamic = matches!(one, Kind::Dyn) || matches!(two, Kind::Dyn);
    match operator {
        "==" | "!=" => one.fits(two).then_some(Kind::Bool),
        "<" | "<=" | ">" | ">=" => {
            let numbers = one.is_number() && two.is_number();
            (one.has_order() && two.has_order() && (numbers || one.fits(two))).then_some(Kind::Bool)
        }
        "in" => match two {
            Kind::Dyn => Some(Kind::Bool),
            Kind::List(of) | Kind::Map(of, _) => one.fits(of).then_some(Kind::Bool),
            _ => None,
        },
        _ if dynamic => Some(Kind::Dyn),
        "+" => match (one, two) {
            (Kind::Text, Kind::Text) => Some(Kind::Text),
            (Kind::Bytes, Kind::Bytes) => Some(Kind::Bytes),
            (Kind::List(of), Kind::List(other)) => {
                let unknown = matches!(**of, Kind::Dyn);
                one.fits(two).then(|| Kind::List(if unknown { other.clone() } else { of.clone() }))
            }
            (Kind::Duration, Kind::Duration) => Some(Kind::Duration),
            (Kind::Moment, Kind::Duration) | (Kind::Duration, Kind::Moment) => Some(Kind::Moment),
            _ => same_number(one, two),
        },
        "-" => match (one, two) {
            (Kind::Duration, Kind::Duration) | (Kind::Moment, Kind::Moment) => Some(Kind::Duration),
            (Kind::Moment, Kind::Duration) => Some(Kind::Moment),
            _ => same_number(one, two),
        },
        "%" => same_number(one, two).filter(|kind| !matches!(kind, Kind::Double)),
        _ => same_number(one, two),
    }
}

fn same_number<'a>(one: &Kind<'a>, two: &Kind<'a>) -> Option<Kind<'a>> {
    (one.is_number() && one.fits(two)).then(|| one.clone())
}

/// What a method of a value gives.
pub(super) fn method<'a>(name: &str, of: &Kind<'a>, given: &[Kind<'a>]) -> Option<Kind<'a>> {
    match of {
        Kind::Dyn => Some(Kind::Dyn),
        Kind::Text => of_text(name, given),
        Kind::List(item) => of_list(name, item, given),
        Kind::Map(..) | Kind::Bytes => (name == "size" && given.is_empty()).then_some(Kind::Int),
        Kind::Optional(inner) => match (name, given) {
            ("hasValue", []) => Some(Kind::Bool),
            ("value", []) => Some(Kind::clone(inner)),
            ("orValue", [other]) if other.fits(inner) => {
                Some(if matches!(**inner, Kind::Dyn) { other.clone() } else { Kind::clone(inner) })
            }
            ("or", [other]) if other.fits(of) => Some(of.clone()),
            _ => None,
        },
        Kind::Moment => {
            let zone = given.iter().all(|zone| zone.fits(&Kind::Text));
            (name.starts_with("get") && zone).then_some(Kind::Int)
        }
        Kind::Duration => {
            let parts = ["getHours", "getMinutes", "getSeconds", "getMilliseconds"];
            (parts.contains(&name) && given.is_empty()).then_some(Kind::Int)
        }
        Kind::Address if given.is_empty() => match name {
            "family" => Some(Kind::Int),
            "isUnspecified"
            | "isLoopback"
            | "isLinkLocalUnicast"
            | "isLinkLocalMulticast"
            | "isGlobalUnicast" => Some(Kind::Bool),
            _ => None,
        },
        Kind::Range => match (name, given) {
            ("containsIP", [one]) if one.fits(&Kind::Address) || one.fits(&Kind::Text) => Some(Kind::Bool),
            ("containsCIDR", [one]) if one.fits(&Kind::Range) || one.fits(&Kind::Text) => Some(Kind::Bool),
            ("ip", []) => Some(Kind::Address),
            ("masked", []) => Some(Kind::Range),
            ("prefixLength", []) => Some(Kind::Int),
            _ => None,
        },
        Kind::Url => {
            let parts = ["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"];
            (parts.contains(&name) && given.is_empty()).then_some(Kind::Text)
        }
        Kind::Format => {
            let told = || Kind::Optional(Kind::List(Kind::Text.into()).into());
            matches!((name, given), ("validate", [one]) if one.fits(&Kind::Text)).then(told)
        }
        Kind::Quantity => {
            let other = |kind: &Kind<'_>| kind.fits(&Kind::Quantity);
            match (name, given) {
                ("add" | "sub", [one]) if other(one) || one.fits(&Kind::Int) => Some(Kind::Quantity),
                ("isGreaterThan" | "isLessThan", [one]) if other(one) => Some(Kind::Bool),
                ("compareTo", [one]) if other(one) => Some(Kind::Int),
                ("sign" | "asInteger", []) => Some(Kind::Int),
                ("isInteger", []) => Some(Kind::Bool),
                _ => None,
            }
        }
        _ => None,
    }
}

fn of_text<'a>(name: &str, given: &[Kind<'a>]) -> Option<Kind<'a>> {
    let fit = |wanted: &[Kind<'a>]| {
        wanted.len() >= given.len() && given.iter().zip(wanted).all(|(one, wanted)| one.fits(wanted))
    };
    let (wanted, found): (&[Kind<'a>], Kind<'a>) = match name {
        "size" => (&[], Kind::Int),
        "contains" | "startsWith" | "endsWith" | "matches" => (&[Kind::Text], Kind::Bool),
        "find" => (&[Kind::Text], Kind::Text),
        "findAll" | "split" => (&[Kind::Text, Kind::Int], Kind::List(Kind::Text.into())),
        "indexOf" | "lastIndexOf" => (&[Kind::Text, Kind::Int], Kind::Int),
        "charAt" => (&[Kind::Int], Kind::Text),
        "substring" => (&[Kind::Int, Kind::Int], Kind::Text),
        "replace" => (&[Kind::Text, Kind::Text, Kind::Int], Kind::Text),
        "lowerAscii" | "upperAscii" | "trim" | "reverse" => (&[], Kind::Text),
        "format" => return matches!(given, [Kind::List(_) | Kind::Dyn]).then_some(Kind::Text),
        _ => return None,
    };
    fit(wanted).then_some(found)
}

fn of_list<'a>(name: &str, item: &Kind<'a>, given: &[Kind<'a>]) -> Option<Kind<'a>> {
    match (name, given) {
        ("size", []) => Some(Kind::Int),
        ("isSorted", []) if item.has_order() => Some(Kind::Bool),
        ("min" | "max", []) if item.has_order() => Some(item.clone()),
        ("sum", []) if item.is_number() || matches!(item, Kind::Duration | Kind::Dyn) => Some(item.clone()),
        ("indexOf" | "lastIndexOf", [wanted]) if wanted.fits(item) => Some(Kind::Int),
        ("join", []) if item.fits(&Kind::Text) => Some(Kind::Text),
        ("join", [between]) if item.fits(&Kind::Text) && between.fits(&Kind::Text) => Some(Kind::Text),
        ("reverse", []) => Some(Kind::List(item.clone().into())),
        _ => None,
    }
}

/// What a function gives.
pub(super) fn function<'a>(name: &str, given: &[Kind<'a>]) -> Option<Kind<'a>> {
    if formats::takes(name) == Some(given.len()) {
        return match given {
            [] => Some(Kind::Format),
            [name, ..] => name.fits(&Kind::Text).then(|| Kind::Optional(Kind::Format.into())),
        };
    }
    let Some(first) = given.first() else {
        return (name == "optional.none").then(|| Kind::Optional(Kind::Dyn.into()));
    };
    let among =
        |kinds: &[Kind<'a>], found: Kind<'a>| kinds.iter().any(|kind| first.fits(kind)).then_some(found);
    use Kind::{Address, Bool, Bytes, Double, Duration, Dyn, Int, Moment, Quantity, Range, Text, Uint, Url};
    match name {
        "dyn" => Some(Dyn),
        "type" => Some(Kind::Type(first.clone().into())),
        "optional.of" => Some(Kind::Optional(first.clone().into())),
        "size" | "matches" if matches!(first, Dyn) => Some(if name == "size" { Int } else { Bool }),
        "size" => method(name, first, &given[1..]),
        "matches" => matches!(first, Text).then(|| of_text(name, &given[1..])).flatten(),
        "ip" => among(&[Text], Address),
        "cidr" => among(&[Text], Range),
        "url" => among(&[Text], Url),
        "sets.contains" | "sets.equivalent" | "sets.intersects" => match given {
            [one @ (Dyn | Kind::List(_)), two @ (Dyn | Kind::List(_))] if one.fits(two) => Some(Bool),
            _ => None,
        },
        "isCIDR" | "isIP" | "isQuantity" | "isURL" => among(&[Text], Bool),
        "quantity" => among(&[Text], Quantity),
        "bool" => among(&[Bool, Text], Bool),
        "bytes" => among(&[Bytes, Text], Bytes),
        "double" => among(&[Double, Int, Uint, Text], Double),
        "int" => among(&[Int, Uint, Double, Text, Moment, Duration], Int),
        "uint" => among(&[Uint, Int, Double, Text], Uint),
        "string" => among(&[Text, Bool, Int, Uint, Double, Bytes, Moment, Duration, Address, Range], Text),
        "duration" => among(&[Duration, Text, Int], Duration),
        "timestamp" => among(&[Moment, Text, Int], Moment),
        _ => None,
    }
}
