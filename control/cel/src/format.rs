//! `"%s has %d".format([a, b])`: format strings, as Kubernetes 1.34 fills them.

use crate::CelType;
use crate::to_text::to_text;
use crate::value::CelValue;
use crate::{EvalBudget, EvalError, mismatch};

/// Digits behind the point that a place may ask for.
const PRECISION_MAX: usize = 1000;
/// ... and has if it asks for none.
const PRECISION: usize = 6;

/// A part of such a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FormatPart<'a> {
    Text(&'a str),
    Verb(FormatVerb),
}

impl FormatPart<'_> {
    pub(crate) fn verb(&self) -> Option<FormatVerb> {
        if let Self::Verb(place) = self { Some(*place) } else { None }
    }
}

/// Where a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FormatVerb {
    letter: char,
    precision: usize,
}

impl FormatVerb {
    /// Whether a value of that kind may go there.
    pub(crate) fn accepts(self, kind: &CelType<'_>) -> bool {
        use CelType::{Bool, Bytes, Double, Dyn, Int, String, Uint};
        match self.letter {
            _ if matches!(kind, Dyn) => true,
            's' => !matches!(
                kind,
                CelType::Quantity
                    | CelType::Ip
                    | CelType::Cidr
                    | CelType::Url
                    | CelType::Format
                    | CelType::Optional(_)
                    | CelType::Object { .. }
                    | CelType::Metadata
            ),
            'd' | 'o' => matches!(kind, Int | Uint),
            'b' => matches!(kind, Int | Uint | Bool),
            'x' | 'X' => matches!(kind, Int | Uint | String | Bytes),
            // NaN and the infinities are texts.
            _ => matches!(kind, Double | String),
        }
    }

    pub(crate) fn accepted_types(self) -> &'static str {
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
pub(crate) fn parse(text: &str) -> Result<Vec<FormatPart<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        found.push(FormatPart::Text(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            found.push(FormatPart::Text("%"));
            rest = behind;
            continue;
        }
        let mut precision = PRECISION;
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            let requested = behind[..end].parse().ok().filter(|requested| *requested <= PRECISION_MAX);
            precision = requested.ok_or_else(|| {
                let requested = &behind[..end];
                format!(
                    "could not parse formatting clause: precision {requested:?} is not a number up to {PRECISION_MAX}"
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
        found.push(FormatPart::Verb(FormatVerb { letter, precision }));
        rest = &rest[letter.len_utf8()..];
    }
    found.push(FormatPart::Text(rest));
    Ok(found)
}

/// The text with `values` in its places.
pub(crate) fn fill(text: &str, values: &[CelValue], steps: &mut EvalBudget) -> Result<CelValue, EvalError> {
    let parts = parse(text).map_err(EvalError::Mismatch)?;
    let mut values = values.iter();
    let mut found = String::new();
    for part in parts {
        match part {
            FormatPart::Text(text) => found.push_str(text),
            FormatPart::Verb(place) => {
                let Some(value) = values.next() else { return mismatch("format: more places than values") };
                found.push_str(&format_value(place, value, steps)?);
            }
        }
    }
    Ok(CelValue::text(found))
}

fn format_value(place: FormatVerb, value: &CelValue, steps: &mut EvalBudget) -> Result<String, EvalError> {
    let text = match (place.letter, value) {
        (
            's',
            CelValue::Optional(_)
            | CelValue::Quantity(_)
            | CelValue::Ip(_)
            | CelValue::Cidr(..)
            | CelValue::Url(_)
            | CelValue::Format(_),
        ) => {
            return unfit(place, value);
        }
        ('s', _) => return to_text(value, steps),
        ('d', CelValue::Int(number)) => number.to_string(),
        ('d', CelValue::Uint(number)) => number.to_string(),
        ('b', CelValue::Bool(one)) => u8::from(*one).to_string(),
        ('f' | 'e', CelValue::Double(number)) if !number.is_finite() => to_text(value, steps)?,
        ('f' | 'e', CelValue::String(text)) if ["NaN", "Infinity", "-Infinity"].contains(&&**text) => text.to_string(),
        ('f', CelValue::Double(number)) => grouped(&format!("{number:.*}", place.precision)),
        // Whatever precision is asked for, the answer has six digits there.
        ('e', CelValue::Double(number)) => scientific(&format!("{number:.PRECISION$e}")),
        ('x', CelValue::String(text)) => hex(text.as_bytes(), false),
        ('x', CelValue::Bytes(bytes)) => hex(bytes, false),
        ('X', CelValue::String(text)) => hex(text.as_bytes(), true),
        ('X', CelValue::Bytes(bytes)) => hex(bytes, true),
        (letter, CelValue::Int(number)) => {
            let digits = to_radix(letter, number.unsigned_abs());
            match digits {
                Some(digits) if *number < 0 => format!("-{digits}"),
                Some(digits) => digits,
                None => return unfit(place, value),
            }
        }
        (letter, CelValue::Uint(number)) => match to_radix(letter, *number) {
            Some(digits) => digits,
            None => return unfit(place, value),
        },
        _ => return unfit(place, value),
    };
    steps.spend_text(text.len())?;
    Ok(text)
}

fn unfit<T>(place: FormatVerb, value: &CelValue) -> Result<T, EvalError> {
    mismatch(format!("error during formatting: {}, was given {}", place.accepted_types(), value.type_name()))
}

fn to_radix(letter: char, number: u64) -> Option<String> {
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
