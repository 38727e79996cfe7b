//! Splits a rule's text into tokens.

use crate::CompileError;

/// One word of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CelToken {
    Name(String),
    Int(i64),
    /// The smallest integer, whose sign is before it.
    IntMin,
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Punctuation(&'static str),
}

const PUNCTUATION: [&str; 26] = [
    "&&", "||", "==", "!=", "<=", ">=", "[?", "{?", ".?", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "<", ">",
    "+", "-", "*", "/", "%",
];

/// The words of `rule`, each with where it begins.
pub(crate) fn tokenize(rule: &str) -> Result<Vec<(CelToken, usize)>, CompileError> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = rule[at..].chars().next() {
        let rest = &rule[at..];
        if next.is_whitespace() {
            at += next.len_utf8();
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (token, length) = if let Some(literal) = literal(rest) {
            literal.map_err(|why| CompileError::new(at, format!("Syntax error: {why}")))?
        } else if next.is_ascii_digit() || (next == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            number(rest).ok_or_else(|| CompileError::new(at, "Syntax error: invalid number"))?
        } else if next.is_ascii_alphabetic() || next == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            (CelToken::Name(rest[..length].to_owned()), length)
        } else if next == '!' && !rest.starts_with("!=") {
            (CelToken::Punctuation("!"), 1)
        } else {
            let mark = PUNCTUATION.iter().find(|mark| rest.starts_with(**mark));
            let mark = mark
                .ok_or_else(|| CompileError::new(at, format!("Syntax error: token recognition error at: '{next}'")))?;
            (CelToken::Punctuation(mark), mark.len())
        };
        found.push((token, at));
        at += length;
    }
    Ok(found)
}

fn number(text: &str) -> Option<(CelToken, usize)> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let length = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        let value = u64::from_str_radix(&hex[..length], 16).ok()?;
        return if hex[length..].starts_with(['u', 'U']) {
            Some((CelToken::Uint(value), length + 3))
        } else {
            Some((CelToken::Int(i64::try_from(value).ok()?), length + 2))
        };
    }
    let digits = |from: usize| from + text[from..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - from);
    let whole = digits(0);
    let mut end = whole;
    if text[end..].starts_with('.') && text[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        end = digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let last = digits(end + 1 + sign);
        if last == end + 1 + sign {
            return None;
        }
        end = last;
    }
    if end > whole {
        return Some((CelToken::Double(text[..end].parse().ok()?), end));
    }
    let value: u64 = text[..end].parse().ok()?;
    if text[end..].starts_with(['u', 'U']) {
        return Some((CelToken::Uint(value), end + 1));
    }
    match i64::try_from(value) {
        Ok(value) => Some((CelToken::Int(value), end)),
        Err(_) if value == i64::MIN.unsigned_abs() => Some((CelToken::IntMin, end)),
        Err(_) => None,
    }
}

/// A text or bytes in quotes; `None`: it is something else.
fn literal(text: &str) -> Option<Result<(CelToken, usize), String>> {
    let prefix = text.find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B'))?;
    if prefix > 2 || !text[prefix..].starts_with(['"', '\'']) {
        return None;
    }
    let (raw, bytes) = (text[..prefix].contains(['r', 'R']), text[..prefix].contains(['b', 'B']));
    let body = &text[prefix..];
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote))?;
    Some(quoted(&body[quote.len()..], quote, raw).and_then(|(found, length)| {
        let length = prefix + quote.len() + length;
        if bytes {
            return Ok((CelToken::Bytes(found), length));
        }
        let found = String::from_utf8(found).map_err(|_| "a string that is not UTF-8".to_owned())?;
        Ok((CelToken::Text(found), length))
    }))
}

/// The text before the closing `quote`, and its length with the quote.
fn quoted(text: &str, quote: &str, raw: bool) -> Result<(Vec<u8>, usize), String> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with(quote) {
            return Ok((found, at + quote.len()));
        }
        let Some(next) = rest.chars().next() else { return Err("an unterminated string".into()) };
        if next == '\n' && quote.len() == 1 {
            return Err("an unterminated string".into());
        }
        if next == '\\' && !raw {
            let (bytes, length) = escaped(&rest[1..]).ok_or("an invalid escape sequence")?;
            found.extend(bytes);
            at += 1 + length;
            continue;
        }
        if next == '\\' {
            // In a raw text it stands for itself, and what follows does not end the text.
            found.push(b'\\');
            at += 1;
            let Some(next) = text[at..].chars().next() else { continue };
            found.extend(next.to_string().bytes());
            at += next.len_utf8();
            continue;
        }
        found.extend(next.to_string().bytes());
        at += next.len_utf8();
    }
}

/// The character of an escape sequence, and its length.
fn escaped(text: &str) -> Option<(Vec<u8>, usize)> {
    let next = text.chars().next()?;
    let plain = match next {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => next as u8,
        'x' | 'X' => {
            return u8::from_str_radix(text.get(1..3)?, 16).ok().map(|byte| (vec![byte], 3));
        }
        'u' | 'U' => {
            let length = if next == 'u' { 4 } else { 8 };
            let code = u32::from_str_radix(text.get(1..=length)?, 16).ok()?;
            return Some((char::from_u32(code)?.to_string().into_bytes(), 1 + length));
        }
        '0'..='3' => return u8::from_str_radix(text.get(..3)?, 8).ok().map(|byte| (vec![byte], 3)),
        _ => return None,
    };
    Some((vec![plain], 1))
}
