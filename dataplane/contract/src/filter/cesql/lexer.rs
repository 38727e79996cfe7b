//! Splits text into tokens.

use std::borrow::Cow;
use std::ops::Range;

use super::CesqlParseError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CesqlToken<'t> {
    /// A name of an attribute or a function; letters, digits, `_`.
    Name(&'t str),
    Keyword(CesqlKeyword),
    /// Digits, without sign.
    Number(&'t str),
    Text(Cow<'t, str>),
    Symbol(CesqlSymbol),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CesqlKeyword {
    And,
    Or,
    Xor,
    Not,
    Like,
    In,
    Exists,
    True,
    False,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CesqlSymbol {
    Open,
    Close,
    Comma,
    Star,
    Slash,
    Percent,
    Plus,
    Minus,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const KEYWORDS: [(&str, CesqlKeyword); 9] = [
    ("AND", CesqlKeyword::And),
    ("OR", CesqlKeyword::Or),
    ("XOR", CesqlKeyword::Xor),
    ("NOT", CesqlKeyword::Not),
    ("LIKE", CesqlKeyword::Like),
    ("IN", CesqlKeyword::In),
    ("EXISTS", CesqlKeyword::Exists),
    ("TRUE", CesqlKeyword::True),
    ("FALSE", CesqlKeyword::False),
];

/// The longer ones first.
const SYMBOLS: [(&str, CesqlSymbol); 15] = [
    ("!=", CesqlSymbol::NotEqual),
    ("<>", CesqlSymbol::NotEqual),
    ("<=", CesqlSymbol::LessOrEqual),
    (">=", CesqlSymbol::GreaterOrEqual),
    ("<", CesqlSymbol::Less),
    (">", CesqlSymbol::Greater),
    ("=", CesqlSymbol::Equal),
    ("(", CesqlSymbol::Open),
    (")", CesqlSymbol::Close),
    (",", CesqlSymbol::Comma),
    ("*", CesqlSymbol::Star),
    ("/", CesqlSymbol::Slash),
    ("%", CesqlSymbol::Percent),
    ("+", CesqlSymbol::Plus),
    ("-", CesqlSymbol::Minus),
];

pub(super) struct CesqlLexer<'t> {
    text: &'t str,
    /// Bytes read; always between two characters.
    at: usize,
}

impl<'t> CesqlLexer<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and the byte at which it begins.
    pub(super) fn next(&mut self) -> Result<(usize, CesqlToken<'t>), CesqlParseError> {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let start = self.text.len() - rest.len();
        self.at = start;
        let Some(first) = rest.chars().next() else { return Ok((start, CesqlToken::End)) };
        if first.is_ascii_alphanumeric() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.at = start + end;
            return Ok((start, word(&rest[..end])));
        }
        if first == '\'' || first == '"' {
            return self.quoted(start, first).map(|text| (start, CesqlToken::Text(text)));
        }
        let Some((spelling, symbol)) = SYMBOLS.iter().find(|(spelling, _)| rest.starts_with(spelling)) else {
            return Err(self.error(start, format!("{first:?} is not valid here")));
        };
        self.at = start + spelling.len();
        Ok((start, CesqlToken::Symbol(*symbol)))
    }

    /// In a string a backslash escapes the quote after it. Other backslashes are literal, so that patterns
    /// can have their own.
    fn quoted(&mut self, start: usize, quote: char) -> Result<Cow<'t, str>, CesqlParseError> {
        let inner = &self.text[start + 1..];
        let mut is_escaped = false;
        for (at, c) in inner.char_indices() {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if c == quote => {
                    self.at = start + 1 + at + 1;
                    return Ok(unescape(&inner[..at], quote));
                }
                _ => {}
            }
        }
        Err(self.error(start, format!("the string that begins here has no closing {quote}")))
    }

    /// The byte after the last token.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) fn slice(&self, bytes: Range<usize>) -> &'t str {
        &self.text[bytes]
    }

    pub(super) fn error(&self, at: usize, reason: impl Into<String>) -> CesqlParseError {
        let position = 1 + self.text[..at].chars().count();
        CesqlParseError { position, reason: reason.into() }
    }
}

fn word(word: &str) -> CesqlToken<'_> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return CesqlToken::Number(word);
    }
    match KEYWORDS.iter().find(|(spelling, _)| word.eq_ignore_ascii_case(spelling)) {
        Some((_, keyword)) => CesqlToken::Keyword(*keyword),
        None => CesqlToken::Name(word),
    }
}

fn unescape(inner: &str, quote: char) -> Cow<'_, str> {
    let escape = if quote == '"' { "\\\"" } else { "\\'" };
    if inner.contains(escape) {
        Cow::Owned(inner.replace(escape, escape.trim_start_matches('\\')))
    } else {
        Cow::Borrowed(inner)
    }
}
