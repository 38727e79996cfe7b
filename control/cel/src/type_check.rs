//! Infers the types of a rule's parts from the schema: a reference to a missing field, or a function that does not fit,
//! is rejected with the definition. The messages are those of Kubernetes.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::bounded_regex::{PatternError, PatternSet};
use crate::cel_type::{CelType, optional};
use crate::parse::{Comprehension, Expr, ExprKind};
use crate::value::CelValue;
use crate::{CompileError, format, overloads};

/// The kinds of a rule's parts, by where they are in memory.
pub(crate) type TypeMap<'a> = RefCell<HashMap<*const Expr, CelType<'a>>>;

/// The types of variables, innermost first.
#[derive(Debug)]
pub(crate) struct TypeScope<'a, 'b> {
    pub name: &'b str,
    pub kind: CelType<'a>,
    pub outer: Option<&'b TypeScope<'a, 'b>>,
    /// Where the types of all parts are recorded, if needed; by the outermost name.
    pub(crate) type_map: Option<&'b TypeMap<'a>>,
    /// The patterns of all rules of the definition; of the outermost name.
    pub(crate) patterns: Option<&'b RefCell<PatternSet>>,
}

impl<'a> TypeScope<'a, '_> {
    fn outermost(&self) -> &Self {
        let mut known = self;
        while let Some(outer) = known.outer {
            known = outer;
        }
        known
    }

    fn record(&self, expr: &Expr, kind: &CelType<'a>) {
        if let Some(notes) = self.outermost().type_map {
            notes.borrow_mut().insert(expr, kind.clone());
        }
    }

    /// Why a pattern of the rule cannot be used.
    fn pattern_error(&self, pattern: &str) -> Option<String> {
        let mut patterns = self.outermost().patterns?.borrow_mut();
        Some(match patterns.get_or_compile(pattern).err()? {
            PatternError::Syntax(_) => "invalid matches argument".to_owned(),
            PatternError::TooLarge(why) => format!("invalid matches argument: {why}"),
        })
    }

    fn infer(&self, name: &str) -> Option<&CelType<'a>> {
        let mut known = self;
        loop {
            if known.name == name {
                return Some(&known.kind);
            }
            known = known.outer?;
        }
    }
}

fn no_matching_overload<T>(at: usize, name: &str, given: &[&CelType<'_>]) -> Result<T, CompileError> {
    let given: Vec<String> = given.iter().map(ToString::to_string).collect();
    let why = format!("found no matching overload for '{name}' applied to '({})'", given.join(", "));
    Err(CompileError::new(at, why))
}

/// Recursion is bounded by the rule's depth, which reading it bounds.
pub(crate) fn type_of<'a>(expr: &Expr, known: &TypeScope<'a, '_>) -> Result<CelType<'a>, CompileError> {
    let found = find(expr, known)?;
    known.record(expr, &found);
    Ok(found)
}

fn find<'a>(expr: &Expr, known: &TypeScope<'a, '_>) -> Result<CelType<'a>, CompileError> {
    let at = expr.at;
    match &expr.kind {
        ExprKind::Literal(value) => Ok(CelType::of_value(value)),
        ExprKind::Name(name) => Ok(known.infer(name).cloned().unwrap_or(CelType::Dyn)),
        ExprKind::Field { of, field, optional: may_lack } => {
            let found = type_of(of, known)?.field(field, at)?;
            Ok(if *may_lack { optional(found) } else { found })
        }
        ExprKind::Has { of, field } => type_of(of, known)?.field(field, at).map(|_| CelType::Bool),
        ExprKind::Index { of, index, optional: may_lack } => {
            let found = index_type(at, &type_of(of, known)?, &type_of(index, known)?)?;
            Ok(if *may_lack { optional(found) } else { found })
        }
        ExprKind::Not(inner) => match type_of(inner, known)? {
            CelType::Bool | CelType::Dyn => Ok(CelType::Bool),
            other => no_matching_overload(at, "!_", &[&other]),
        },
        ExprKind::Negate(inner) => match type_of(inner, known)? {
            found @ (CelType::Int | CelType::Double | CelType::Dyn) => Ok(found),
            other => no_matching_overload(at, "-_", &[&other]),
        },
        ExprKind::And(all) | ExprKind::Or(all) => {
            for one in all {
                expect_bool(one, known)?;
            }
            Ok(CelType::Bool)
        }
        ExprKind::Conditional(test, one, two) => {
            let (test, one, two) = (type_of(test, known)?, type_of(one, known)?, type_of(two, known)?);
            if !test.is_assignable_to(&CelType::Bool) || !one.is_assignable_to(&two) {
                return no_matching_overload(at, "_?_:_", &[&test, &one, &two]);
            }
            Ok(if matches!(one, CelType::Dyn | CelType::Null) { two } else { one })
        }
        ExprKind::Binary(operator, one, two) => {
            let (one, two) = (type_of(one, known)?, type_of(two, known)?);
            let found = overloads::binary(operator, &one, &two);
            let name = if *operator == "in" { "@in".to_owned() } else { format!("_{operator}_") };
            found.map_or_else(|| no_matching_overload(at, &name, &[&one, &two]), Ok)
        }
        ExprKind::Call { name, of, given } => call(at, name, of.as_deref(), given, known),
        ExprKind::List(items) => Ok(CelType::List(common_type(items.iter(), known)?.into())),
        ExprKind::Map(pairs) => {
            let keys = common_type(pairs.iter().map(|(key, _)| key), known)?;
            let values = common_type(pairs.iter().map(|(_, value)| value), known)?;
            Ok(CelType::Map(keys.into(), values.into()))
        }
        ExprKind::Comprehension {
            how: how @ (Comprehension::OptMap | Comprehension::OptFlatMap),
            of,
            names,
            test,
            ..
        } => of_optional(*how, of, names, test, known),
        ExprKind::Comprehension { how, of, names, test, then } => {
            comprehension(*how, of, names, (test, then.as_deref()), known)
        }
    }
}

fn expect_bool(expr: &Expr, known: &TypeScope<'_, '_>) -> Result<(), CompileError> {
    let found = type_of(expr, known)?;
    if found.is_assignable_to(&CelType::Bool) { Ok(()) } else { Err(expected(expr.at, &CelType::Bool, &found)) }
}

fn expected(at: usize, wanted: &CelType<'_>, found: &CelType<'_>) -> CompileError {
    CompileError::new(at, format!("expected type '{wanted}' but found '{found}'"))
}

/// The kind of all parts, which have to be of one.
fn common_type<'a: 'c, 'c>(
    parts: impl Iterator<Item = &'c Expr>,
    known: &TypeScope<'a, '_>,
) -> Result<CelType<'a>, CompileError> {
    let mut all = CelType::Dyn;
    for part in parts {
        let found = type_of(part, known)?;
        if !found.is_assignable_to(&all) {
            return Err(expected(part.at, &all, &found));
        }
        if matches!(all, CelType::Dyn) {
            all = found;
        }
    }
    Ok(all)
}

fn index_type<'a>(at: usize, of: &CelType<'a>, index: &CelType<'a>) -> Result<CelType<'a>, CompileError> {
    match of {
        CelType::Dyn => Ok(CelType::Dyn),
        CelType::Optional(inner) => Ok(optional(index_type(at, inner, index)?)),
        CelType::List(item) if index.is_assignable_to(&CelType::Int) => Ok(CelType::clone(item)),
        CelType::Map(key, value) if index.is_assignable_to(key) => Ok(CelType::clone(value)),
        _ => no_matching_overload(at, "_[_]", &[of, index]),
    }
}

fn call<'a>(
    at: usize,
    name: &str,
    of: Option<&Expr>,
    given: &[Expr],
    known: &TypeScope<'a, '_>,
) -> Result<CelType<'a>, CompileError> {
    let receiver = of.map(|of| type_of(of, known)).transpose()?;
    let literal = of.and_then(|of| match &of.kind {
        ExprKind::Literal(CelValue::String(text)) => Some(&**text),
        _ => None,
    });
    if name == "format"
        && let [Expr { kind: ExprKind::List(values), .. }] = given
    {
        // The one list whose parts may be of several kinds.
        let kinds = values.iter().map(|value| type_of(value, known)).collect::<Result<Vec<_>, _>>()?;
        let Some(CelType::String | CelType::Dyn) = receiver else {
            return no_matching_overload(at, name, &[receiver.as_ref().unwrap_or(&CelType::Dyn)]);
        };
        if let Some(text) = literal {
            check_format(at, text, values, &kinds)?;
        }
        return Ok(CelType::String);
    }
    let kinds = given.iter().map(|one| type_of(one, known)).collect::<Result<Vec<_>, _>>()?;
    if let Some(pattern) = given.last()
        && name == "matches"
        && let ExprKind::Literal(CelValue::String(text)) = &pattern.kind
        && let Some(why) = known.pattern_error(text)
    {
        return Err(CompileError::new(pattern.at, why));
    }
    let found = match &receiver {
        Some(of) => overloads::method(name, of, &kinds),
        None => overloads::function(name, &kinds),
    };
    let no_overload = || {
        let given: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        let of = receiver.as_ref().map_or_else(String::new, |of| format!("{of}."));
        let why = format!("found no matching overload for '{name}' applied to '{of}({})'", given.join(", "));
        CompileError::new(at, why)
    };
    found.ok_or_else(no_overload)
}

/// Whether the values go into the places of a text.
fn check_format(at: usize, text: &str, values: &[Expr], kinds: &[CelType<'_>]) -> Result<(), CompileError> {
    let parts = format::parse(text).map_err(|why| CompileError::new(at, why))?;
    let places: Vec<_> = parts.iter().filter_map(format::FormatPart::verb).collect();
    if places.len() > values.len() {
        return Err(CompileError::new(at, format!("index {} out of range", values.len())));
    }
    if places.len() < values.len() {
        let why =
            format!("too many arguments supplied to string.format (expected {}, got {})", places.len(), values.len());
        return Err(CompileError::new(at, why));
    }
    for ((place, value), kind) in places.into_iter().zip(values).zip(kinds) {
        if !place.accepts(kind) {
            let why = format!("error during formatting: {}, was given {kind}", place.accepted_types());
            return Err(CompileError::new(value.at, why));
        }
    }
    Ok(())
}

fn comprehension<'a>(
    how: Comprehension,
    of: &Expr,
    names: &[String],
    (test, then): (&Expr, Option<&Expr>),
    known: &TypeScope<'a, '_>,
) -> Result<CelType<'a>, CompileError> {
    let (key, value) = match type_of(of, known)? {
        CelType::Dyn => (CelType::Dyn, CelType::Dyn),
        CelType::List(item) if names.len() == 1 => (*item, CelType::Dyn),
        CelType::List(item) => (CelType::Int, *item),
        CelType::Map(key, value) => (*key, *value),
        other => {
            let why = format!(
                "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
            );
            return Err(CompileError::new(of.at, why));
        }
    };
    let first = names.first().map_or("", String::as_str);
    let outer = TypeScope { name: first, kind: key.clone(), outer: Some(known), type_map: None, patterns: None };
    let second =
        names.get(1).map(|name| TypeScope { name, kind: value, outer: Some(&outer), type_map: None, patterns: None });
    let inner = second.as_ref().unwrap_or(&outer);
    if how == Comprehension::Map {
        let Some(then) = then else { return Ok(CelType::List(type_of(test, inner)?.into())) };
        expect_bool(test, inner)?;
        return Ok(CelType::List(type_of(then, inner)?.into()));
    }
    expect_bool(test, inner)?;
    Ok(if how == Comprehension::Filter { CelType::List(key.into()) } else { CelType::Bool })
}

/// `optMap` and `optFlatMap`.
fn of_optional<'a>(
    how: Comprehension,
    of: &Expr,
    names: &[String],
    test: &Expr,
    known: &TypeScope<'a, '_>,
) -> Result<CelType<'a>, CompileError> {
    let inner = match type_of(of, known)? {
        CelType::Dyn => CelType::Dyn,
        CelType::Optional(inner) => *inner,
        other => return Err(expected(of.at, &optional(CelType::Dyn), &other)),
    };
    let name = names.first().map_or("", String::as_str);
    let found = type_of(test, &TypeScope { name, kind: inner, outer: Some(known), type_map: None, patterns: None })?;
    match (how, found) {
        (Comprehension::OptMap, found) => Ok(CelType::Optional(found.into())),
        (_, found @ (CelType::Optional(_) | CelType::Dyn)) => Ok(found),
        (_, found) => Err(expected(test.at, &optional(CelType::Dyn), &found)),
    }
}
