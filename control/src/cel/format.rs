//! `"%s has %d".format([a, b])`: texts with places for values, as Kubernetes 1.34 fills them.

use super::check::Kind;
use super::value::Val;
use super::{Failure, Steps, text::written, wrong};

/// Digits behind the point that a place may ask for.
const PRECISION_MAX: usize = 1000;
/// ... and has if it asks for none.
const PRECISION: usize = 6;

/// A part of such a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Place(Place),
}

impl Part<'_> {
    pub(super) fn place(&self) -> Option<Place> {
        if let Self::Place(place) = self { Some(*place) } else { None }
    }
}

/// Where a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    letter: char,
    precision: usize,
}

impl Place {
    /// Whether a value of that kind may go there.
    pub(super) fn takes(self, kind: &Kind<'_>) -> bool {
        use Kind::{Bool, Bytes, Double, Dyn, Int, Text, Uint};
        match self.letter {
            _ if matches!(kind, Dyn) => true,
            's' => !matches!(
                kind,
                Kind::Quantity
                    | Kind::Address
                    | Kind::Range
                    | Kind::Url
                    | Kind::Format
                    | Kind::Optional(_)
                    | Kind::Object { .. }
                    | Kind::Metadata
            ),
            'd' | 'o' => matches!(kind, Int | Uint),
            'b' => matches!(kind, Int | Uint | Bool),
            'x' | 'X' => matches!(kind, Int | Uint | Text | Bytes),
            // NaN and the infinities are texts.
            _ => matches!(kind, Double | Text),
        }
    }

    pub(super) fn takes_what(self) -> &'static str {
        match self.letter {
            's' => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, \
                 durations, and timestamps"
            }
            'd' => "decimal clause can only be used on integers",
            'o' => "octal clause can only be used on integers",
            'b' => "only integers and bools can be formatted as binary",
            'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
            'e' => "scientific clause can only be used on doubles",
            _ => "fixed-point clause can only be used on doubles",
        }
    }
}

/// The parts of a text, in order.
pub(super) fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        found.push(Part::Text(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            found.push(Part::Text("%"));
            rest = behind;
            continue;
        }
        let mut precision = PRECISION;
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            let told = behind[..end].parse().ok().filter(|told| *told <= PRECISION_MAX);
            precision = told.ok_or_else(|| {
                let told = &behind[..end];
                format!(
                    "could not parse formatting clause: precision {told:?} is no number up to {PRECISION_MAX}"
                )
            })?;
            rest = &behind[end..];
        }
        let Some(letter) = rest.chars().next() else {
            return Err("could not parse formatting clause: unexpected end of string".into());
        };
        if !"sdfebxXo".contains(letter) {
            let why = "could not parse formatting clause: unrecognized formatting clause";
            return Err(format!("{why} \"{letter}\""));
        }
        found.push(Part::Place(Place { letter, precision }));
        rest = &rest[letter.len_utf8()..];
    }
    found.push(Part::Text(rest));
    Ok(found)
}

/// The text with `values` in its places.
pub(super) fn fill(text: &str, values: &[Val], steps: &mut Steps) -> Result<Val, Failure> {
    let parts = parts(text).map_err(Failure::Wrong)?;
    let mut values = values.iter();
    let mut found = String::new();
    for part in parts {
        match part {
            Part::Text(text) => found.push_str(text),
            Part::Place(place) => {
                let Some(value) = values.next() else { return wrong("format: more places than values") };
                found.push_str(&shown(place, value, steps)?);
            }
        }
    }
    Ok(Val::text(found))
}

fn shown(place: Place, value: &Val, steps: &mut Steps) -> Result<String, Failure> {
    let text = match (place.letter, value) {
        (
            's',
            Val::Optional(_)
            | Val::Quantity(_)
            | Val::Address(_)
            | Val::Range(..)
            | Val::Url(_)
            | Val::Format(_),
        ) => {
            return unfit(place, value);
        }
        ('s', _) => return written(value, steps),
        ('d', Val::Int(number)) => number.to_string(),
        ('d', Val::Uint(number)) => number.to_string(),
        ('b', Val::Bool(one)) => u8::from(*one).to_string(),
        ('f' | 'e', Val::Double(number)) if !number.is_finite() => written(value, steps)?,
        ('f' | 'e', Val::Text(text)) if ["NaN", "Infinity", "-Infinity"].contains(&&**text) => {
            text.to_string()
        }
        ('f', Val::Double(number)) => grouped(&format!("{number:.*}", place.precision)),
        // Whatever precision is asked for, the answer has six digits there.
        ('e', Val::Double(number)) => scientific(&format!("{number:.PRECISION$e}")),
        ('x', Val::Text(text)) => hex(text.as_bytes(), false),
        ('x', Val::Bytes(bytes)) => hex(bytes, false),
        ('X', Val::Text(text)) => hex(text.as_bytes(), true),
        ('X', Val::Bytes(bytes)) => hex(bytes, true),
        (letter, Val::Int(number)) => {
            let digits = based(letter, number.unsigned_abs());
            match digits {
                Some(digits) if *number < 0 => format!("-{digits}"),
                Some(digits) => digits,
                None => return unfit(place, value),
            }
        }
        (letter, Val::Uint(number)) => match based(letter, *number) {
            Some(digits) => digits,
            None => return unfit(place, value),
        },
        _ => return unfit(place, value),
    };
    steps.text(text.len())?;
    Ok(text)
}

fn unfit<T>(place: Place, value: &Val) -> Result<T, Failure> {
    wrong(format!("error during formatting: {}, was given {}", place.takes_what(), value.kind()))
}

fn based(letter: char, number: u64) -> Option<String> {
    match letter {
        'b' => Some(format!("{number:b}")),
        'o' => Some(format!("{number:o}")),
        'x' => Some(format!("{number:x}")),
        'X' => Some(format!("{number:X}")),
        _ => None,
    }
}

fn hex(bytes: &[u8], large: bool) -> String {
    bytes.iter().map(|byte| if large { format!("{byte:02X}") } else { format!("{byte:02x}") }).collect()
}

/// `1234567.5`: `1,234,567.5`
fn grouped(number: &str) -> String {
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |number| ("-", number));
    let (whole, part) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut found = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            found.push(',');
        }
        found.push(digit);
    }
    found + part
}

/// `1.5e-4`: `1.5×10⁻⁰⁴`
fn scientific(number: &str) -> String {
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |digits| ("⁻", digits));
    let high = |digit: char| match digit {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '4' => '⁴',
        '5' => '⁵',
        '6' => '⁶',
        '7' => '⁷',
        '8' => '⁸',
        '9' => '⁹',
        _ => '⁰',
    };
    let digits: String = format!("{digits:0>2}").chars().map(high).collect();
    format!("{mantissa}×10{sign}{digits}")
}

/// A number as Go writes it when it is left to choose.
pub(crate) fn double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // From here on Go leaves the plain form.
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}
