//! Parses a JSONPath as kubectl does.

use serde_json::Value;

use super::{JsonPath, PathComparison, PathFilter, PathSlice, PathStep};

/// Paths within paths (of filters and lists of names): users hardly write two.
const NESTED_MAX: usize = 8;
/// The comparison operators of a filter.
const COMPARING: [char; 4] = ['!', '<', '=', '>'];

pub(super) fn path(text: &str) -> Option<JsonPath> {
    parse_nested(text, 0)
}

fn parse_nested(text: &str, depth: usize) -> Option<JsonPath> {
    if depth > NESTED_MAX {
        return None;
    }
    let mut steps = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        rest = match first {
            ' ' | '@' | '$' => behind,
            '}' => break, // what is outside of the braces is no part of a column
            '[' if behind.starts_with("?(") => filter(&behind[2..], &mut steps, depth)?,
            '[' => brackets(behind, &mut steps, depth)?,
            '.' if behind.starts_with('.') => below(&behind[1..], &mut steps)?,
            '.' => field(behind, &mut steps),
            '"' | '\'' => quoted(behind, first, &mut steps)?,
            '+' | '-' | '0'..='9' => number(rest, &mut steps)?,
            _ if is_bare_word_char(first) => bare_word(rest, &mut steps),
            _ => return None,
        };
    }
    Some(JsonPath(steps))
}

/// Whether a name ends here.
fn is_name_end(found: char) -> bool {
    matches!(found, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_bare_word_char(found: char) -> bool {
    found == '_' || found.is_alphanumeric()
}

/// A name; what is after a backslash belongs to it.
fn field<'a>(text: &'a str, steps: &mut Vec<PathStep>) -> &'a str {
    let mut escaped = false;
    let end = text.find(|found| {
        let end = !escaped && is_name_end(found);
        escaped = !escaped && found == '\\';
        end
    });
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    steps.push(if name == "*" { PathStep::Wildcard } else { PathStep::Field(name.replace('\\', "")) });
    rest
}

fn below<'a>(text: &'a str, steps: &mut Vec<PathStep>) -> Option<&'a str> {
    if steps.last() == Some(&PathStep::RecursiveDescent) {
        return None;
    }
    steps.push(PathStep::RecursiveDescent);
    Some(if text.starts_with(is_bare_word_char) { field(text, steps) } else { text })
}

fn bare_word<'a>(text: &'a str, steps: &mut Vec<PathStep>) -> &'a str {
    let (name, rest) = text.split_at(text.find(is_name_end).unwrap_or(text.len()));
    steps.push(name.parse().map_or(PathStep::Unknown, |known: bool| PathStep::Literal(known.into())));
    rest
}

fn number<'a>(text: &'a str, steps: &mut Vec<PathStep>) -> Option<&'a str> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign..].find(|found: char| found != '.' && !found.is_ascii_digit());
    let (number, rest) = text.split_at(digits.map_or(text.len(), |digits| sign + digits));
    let whole = number.parse::<i64>().ok().map(Value::from);
    let number = whole.or_else(|| number.parse::<f64>().ok().map(Value::from))?;
    steps.push(PathStep::Literal(number));
    Some(rest)
}

fn quoted<'a>(text: &'a str, quote: char, steps: &mut Vec<PathStep>) -> Option<&'a str> {
    let mut literal = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            _ if letter == quote => {
                steps.push(PathStep::Literal(literal.into()));
                return Some(&text[at + 1..]);
            }
            '\n' => return None,
            '\\' => literal.push(match letters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                same @ ('\\' | '"' | '\'') => same,
                _ => return None,
            }),
            _ => literal.push(letter),
        }
    }
    None
}

/// `0]`, `1:3]`, `*]`, `'a']`, and several of them.
fn brackets<'a>(text: &'a str, steps: &mut Vec<PathStep>, depth: usize) -> Option<&'a str> {
    let (inside, rest) = text.split_once(']').filter(|(inside, _)| !inside.contains('\n'))?;
    if inside.contains(',') {
        let choices = inside.split(',').map(|one| parse_nested(&format!("[{}]", one.trim_matches(' ')), depth + 1));
        steps.push(PathStep::Union(choices.collect::<Option<_>>()?));
        return Some(rest);
    }
    let name = inside.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
    if let Some(name) = name.filter(|name| !name.contains('\'')) {
        steps.extend(parse_nested(&format!(".{name}"), depth + 1)?.0);
        return Some(rest);
    }
    steps.push(PathStep::Slice(slice(if inside == "*" { ":" } else { inside })?));
    Some(rest)
}

fn slice(text: &str) -> Option<PathSlice> {
    let number = |text: &str| match text {
        "" => Some(None),
        text if text.starts_with('+') => None,
        text => text.parse().ok().map(Some),
    };
    let parts = text.split(':').map(number).collect::<Option<Vec<Option<i64>>>>()?;
    match *parts.as_slice() {
        [at] => Some(PathSlice::One(at.unwrap_or(0))),
        [from, to] => Some(PathSlice::Range { from, to, step: None }),
        [from, to, step] => Some(PathSlice::Range { from, to, step }),
        _ => None,
    }
}

/// `@.a=="b")]`; a quoted text may have brackets.
fn filter<'a>(text: &'a str, steps: &mut Vec<PathStep>, depth: usize) -> Option<&'a str> {
    let (mut quote, mut before) = (None, '\0');
    let end = text.find(|found| {
        let is_end = found == ')' && quote.is_none();
        if matches!(found, '"' | '\'') && before != '\\' {
            quote = match quote {
                None => Some(found),
                Some(open) if open == found => None,
                open => open,
            };
        }
        before = found;
        is_end
    })?;
    let (condition, rest) = (&text[..end], text[end + 1..].strip_prefix(']')?);
    let Some(at) = condition.find(COMPARING) else {
        let left = parse_nested(condition, depth + 1)?;
        steps.push(PathStep::Filter(Box::new(PathFilter { lhs: left, rhs: None })));
        return Some(rest);
    };
    let (left, behind) = condition.split_at(at);
    let right = behind.trim_start_matches(COMPARING);
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let comparison = match &behind[..behind.len() - right.len()] {
        "<" => PathComparison::LessThan,
        "<=" => PathComparison::LessOrEqual,
        "==" => PathComparison::Equal,
        "!=" => PathComparison::NotEqual,
        ">=" => PathComparison::GreaterOrEqual,
        ">" => PathComparison::GreaterThan,
        _ => PathComparison::Unknown,
    };
    let (left, right) = (parse_nested(left, depth + 1)?, parse_nested(right, depth + 1)?);
    steps.push(PathStep::Filter(Box::new(PathFilter { lhs: left, rhs: Some((comparison, right)) })));
    Some(rest)
}
