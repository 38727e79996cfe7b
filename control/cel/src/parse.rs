//! Parses tokens into a tree. The functions and variables that a rule may use are checked here, once.

use crate::CompileError;
use crate::function_table::{is_function, is_function_name, is_method, is_method_name};
use crate::lexer::{self, CelToken};
use crate::limits::{DEPTH_MAX, NESTING_MAX};
use crate::value::CelValue;

/// A part of a rule.
#[derive(Debug)]
pub(crate) struct Expr {
    /// The byte of the rule that stands for it.
    pub(crate) at: usize,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Literal(CelValue),
    Name(String),
    /// `of.field`; `optional`: of what may not be there.
    Field {
        of: Box<Expr>,
        field: String,
        optional: bool,
    },
    /// `has(of.field)`
    Has {
        of: Box<Expr>,
        field: String,
    },
    Index {
        of: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    Not(Box<Expr>),
    Negate(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Call {
        name: String,
        of: Option<Box<Expr>>,
        given: Vec<Expr>,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// Goes through `of`, calling each item (or key) by the one name, or place and item (or key and value) by the two.
    Comprehension {
        how: Comprehension,
        of: Box<Expr>,
        names: Vec<String>,
        test: Box<Expr>,
        then: Option<Box<Expr>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comprehension {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    /// An optional operand: the test of its presence, or nothing.
    OptMap,
    /// The same, with a test that is optional itself.
    OptFlatMap,
}

/// Names of types, which are values too.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
/// The prefixes of some functions.
const SPACES: [&str; 3] = ["format", "optional", "sets"];
/// Operators of two, by how closely they bind; `&&`, `||` and `?` are apart.
const LEVELS: [&[&str]; 3] = [&["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];

struct CelParser<'a> {
    tokens: Vec<(CelToken, usize)>,
    at: usize,
    /// Bytes of the rule.
    end: usize,
    names: &'a [&'a str],
    /// Names that `all` and its like gave, innermost last.
    bound: Vec<String>,
    nesting: usize,
    /// Links of the chains that the place being read hangs from.
    chain_length: usize,
    compares: bool,
}

/// The tree of `rule`, and whether it speaks of what was there before.
pub(crate) fn parse(rule: &str, names: &[&str]) -> Result<(Expr, bool), CompileError> {
    let tokens = lexer::tokenize(rule)?;
    let mut parser = CelParser {
        tokens,
        at: 0,
        end: rule.len(),
        names,
        bound: Vec::new(),
        nesting: 0,
        chain_length: 0,
        compares: false,
    };
    let root = parser.conditional()?;
    if parser.at < parser.tokens.len() {
        return Err(parser.unexpected("the end"));
    }
    if depth(&root) > DEPTH_MAX {
        return Err(CompileError::new(0, format!("a rule is at most {DEPTH_MAX} levels deep")));
    }
    Ok((root, parser.compares))
}

/// Its own depth is a few times [`DEPTH_MAX`] at most, which [`Parser::chain`] sees to.
fn depth(expr: &Expr) -> usize {
    let deepest = |all: &[Expr]| all.iter().map(depth).max().unwrap_or(0);
    1 + match &expr.kind {
        ExprKind::Literal(_) | ExprKind::Name(_) => 0,
        ExprKind::Field { of, .. } | ExprKind::Has { of, .. } | ExprKind::Not(of) | ExprKind::Negate(of) => depth(of),
        ExprKind::Index { of, index, .. } => depth(of).max(depth(index)),
        ExprKind::And(all) | ExprKind::Or(all) | ExprKind::List(all) => deepest(all),
        ExprKind::Conditional(one, two, three) => depth(one).max(depth(two)).max(depth(three)),
        ExprKind::Binary(_, one, two) => depth(one).max(depth(two)),
        ExprKind::Call { of, given, .. } => deepest(given).max(of.as_deref().map_or(0, depth)),
        ExprKind::Map(pairs) => pairs.iter().map(|(key, value)| depth(key).max(depth(value))).max().unwrap_or(0),
        ExprKind::Comprehension { of, test, then, .. } => {
            depth(of).max(depth(test)).max(then.as_deref().map_or(0, depth))
        }
    }
}

impl CelParser<'_> {
    /// Where the next word begins.
    fn here(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(_, at)| *at)
    }

    /// Where the last one began.
    fn previous(&self) -> usize {
        self.tokens.get(self.at.wrapping_sub(1)).map_or(0, |(_, at)| *at)
    }

    fn unexpected(&self, wanted: &str) -> CompileError {
        let why = match self.tokens.get(self.at) {
            Some((token, _)) => format!("Syntax error: found {token:?}, expected {wanted}"),
            None => format!("Syntax error: found the end, expected {wanted}"),
        };
        CompileError::new(self.here(), why)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((CelToken::Punctuation(found), _)) if *found == mark);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), CompileError> {
        if self.eat(mark) { Ok(()) } else { Err(self.unexpected(&format!("{mark:?}"))) }
    }

    fn name(&mut self) -> Result<String, CompileError> {
        match self.tokens.get(self.at) {
            Some((CelToken::Name(name), _)) => {
                self.at += 1;
                Ok(name.clone())
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Counts the links of a chain: each becomes a level of the tree.
    fn chain(&mut self) -> Result<(), CompileError> {
        self.chain_length += 1;
        if self.chain_length > DEPTH_MAX {
            Err(CompileError::new(self.here(), format!("a rule is at most {DEPTH_MAX} levels deep")))
        } else {
            Ok(())
        }
    }

    fn conditional(&mut self) -> Result<Expr, CompileError> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            let why = format!("a rule has at most {NESTING_MAX} levels of brackets");
            return Err(CompileError::new(self.here(), why));
        }
        let test = self.or()?;
        let at = self.here();
        let found = if self.eat("?") {
            let one = self.or()?;
            self.expect(":")?;
            let what = ExprKind::Conditional(Box::new(test), Box::new(one), Box::new(self.conditional()?));
            Expr { at, kind: what }
        } else {
            test
        };
        self.nesting -= 1;
        Ok(found)
    }

    fn or(&mut self) -> Result<Expr, CompileError> {
        let mut all = vec![self.and()?];
        let at = self.here();
        while self.eat("||") {
            all.push(self.and()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr { at, kind: ExprKind::Or(all) } })
    }

    fn and(&mut self) -> Result<Expr, CompileError> {
        let mut all = vec![self.binary(0)?];
        let at = self.here();
        while self.eat("&&") {
            all.push(self.binary(0)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr { at, kind: ExprKind::And(all) } })
    }

    fn binary(&mut self, level: usize) -> Result<Expr, CompileError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        let outside = self.chain_length;
        while let Some(operator) = self.operator(operators) {
            let at = self.previous();
            self.chain()?;
            let right = self.binary(level + 1)?;
            left = Expr { at, kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)) };
        }
        self.chain_length = outside;
        Ok(left)
    }

    fn operator(&mut self, among: &[&'static str]) -> Option<&'static str> {
        let found = match &self.tokens.get(self.at)?.0 {
            CelToken::Punctuation(mark) => *mark,
            CelToken::Name(name) if name == "in" => "in",
            _ => return None,
        };
        let found = among.iter().find(|one| **one == found)?;
        self.at += 1;
        Some(found)
    }

    fn unary(&mut self) -> Result<Expr, CompileError> {
        let (mut nots, mut minuses, at) = (0, 0, self.here());
        while self.eat("!") {
            nots += 1;
        }
        while nots == 0 && self.eat("-") {
            minuses += 1;
        }
        if minuses % 2 == 1 && matches!(self.tokens.get(self.at), Some((CelToken::IntMin, _))) {
            self.at += 1;
            return self.postfix(Expr { at, kind: ExprKind::Literal(CelValue::Int(i64::MIN)) });
        }
        let first = self.primary()?;
        let mut found = self.postfix(first)?;
        let not = |found: Expr| Expr { at, kind: ExprKind::Not(Box::new(found)) };
        if nots % 2 == 1 {
            found = not(found);
        } else if nots > 0 {
            found = not(not(found));
        }
        Ok(if minuses % 2 == 1 { Expr { at, kind: ExprKind::Negate(Box::new(found)) } } else { found })
    }

    /// The suffixes of a value: fields, calls, indexes.
    fn postfix(&mut self, mut found: Expr) -> Result<Expr, CompileError> {
        let outside = self.chain_length;
        loop {
            self.chain()?;
            let at = self.here();
            let of = |found: Expr| Box::new(found);
            if self.eat(".") {
                let name = self.name()?;
                found = if self.eat("(") {
                    self.method(of(found), name)?
                } else {
                    Expr { at, kind: ExprKind::Field { of: of(found), field: unescaped(&name), optional: false } }
                };
            } else if self.eat(".?") {
                let field = unescaped(&self.name()?);
                found = Expr { at, kind: ExprKind::Field { of: of(found), field, optional: true } };
            } else if self.eat("[?") || self.eat("[") {
                let optional = matches!(self.tokens.get(self.at - 1), Some((CelToken::Punctuation("[?"), _)));
                let index = Box::new(self.conditional()?);
                self.expect("]")?;
                found = Expr { at, kind: ExprKind::Index { of: of(found), index, optional } };
            } else {
                self.chain_length = outside;
                return Ok(found);
            }
        }
    }

    fn method(&mut self, of: Box<Expr>, name: String) -> Result<Expr, CompileError> {
        let how = match name.as_str() {
            "all" => Some(Comprehension::All),
            "exists" => Some(Comprehension::Exists),
            "exists_one" | "existsOne" => Some(Comprehension::ExistsOne),
            "filter" => Some(Comprehension::Filter),
            "map" | "transformList" => Some(Comprehension::Map),
            "optMap" => Some(Comprehension::OptMap),
            "optFlatMap" => Some(Comprehension::OptFlatMap),
            _ => None,
        };
        if let Some(how) = how {
            return self.comprehension(how, name == "transformList", of);
        }
        let at = self.previous();
        let given = self.list(")")?;
        if let ExprKind::Name(space) = &of.kind
            && SPACES.contains(&space.as_str())
            && !self.is_known(space)
        {
            return Self::function(at, format!("{space}.{name}"), given);
        }
        if !is_method(&name, given.len()) {
            return Err(unknown_name(at, &name, is_method_name(&name), given.len()));
        }
        Ok(Expr { at, kind: ExprKind::Call { name, of: Some(of), given } })
    }

    /// `all(x, …)` and its like, behind the bracket. `both`: it has two names.
    fn comprehension(&mut self, how: Comprehension, both: bool, of: Box<Expr>) -> Result<Expr, CompileError> {
        let at = self.previous();
        let mut names = vec![self.name()?];
        self.expect(",")?;
        let counts = matches!(how, Comprehension::All | Comprehension::Exists | Comprehension::ExistsOne);
        let named = matches!(self.tokens.get(self.at), Some((CelToken::Name(_), _)))
            && matches!(self.tokens.get(self.at + 1), Some((CelToken::Punctuation(","), _)));
        if both || (counts && named) {
            names.push(self.name()?);
            self.expect(",")?;
        }
        let outside = self.bound.len();
        self.bound.extend(names.iter().cloned());
        let test = Box::new(self.conditional()?);
        let then = if how == Comprehension::Map && self.eat(",") { Some(Box::new(self.conditional()?)) } else { None };
        self.bound.truncate(outside);
        self.expect(")")?;
        Ok(Expr { at, kind: ExprKind::Comprehension { how, of, names, test, then } })
    }

    fn function(at: usize, name: String, given: Vec<Expr>) -> Result<Expr, CompileError> {
        if !is_function(&name, given.len()) {
            return Err(unknown_name(at, &name, is_function_name(&name), given.len()));
        }
        Ok(Expr { at, kind: ExprKind::Call { name, of: None, given } })
    }

    /// Parts with commas between them, up to `end`.
    fn list(&mut self, end: &str) -> Result<Vec<Expr>, CompileError> {
        let mut found = Vec::new();
        while !self.eat(end) {
            found.push(self.conditional()?);
            if !self.eat(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(found)
    }

    fn primary(&mut self) -> Result<Expr, CompileError> {
        if self.eat("(") {
            let inner = self.conditional()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let at = self.here();
        if self.eat("[") {
            return Ok(Expr { at, kind: ExprKind::List(self.list("]")?) });
        }
        if self.eat("{") {
            return self.map(at);
        }
        let Some((token, _)) = self.tokens.get(self.at).cloned() else {
            return Err(self.unexpected("a value"));
        };
        let literal = match token {
            CelToken::Int(number) => CelValue::Int(number),
            CelToken::Uint(number) => CelValue::Uint(number),
            CelToken::Double(number) => CelValue::Double(number),
            CelToken::Text(text) => CelValue::String(text.into()),
            CelToken::Bytes(bytes) => CelValue::Bytes(bytes.into()),
            CelToken::Name(name) => {
                self.at += 1;
                return self.identifier(name);
            }
            CelToken::Punctuation(_) | CelToken::IntMin => return Err(self.unexpected("a value")),
        };
        self.at += 1;
        Ok(Expr { at, kind: ExprKind::Literal(literal) })
    }

    fn map(&mut self, at: usize) -> Result<Expr, CompileError> {
        let mut pairs = Vec::new();
        while !self.eat("}") {
            let key = self.conditional()?;
            self.expect(":")?;
            pairs.push((key, self.conditional()?));
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { at, kind: ExprKind::Map(pairs) })
    }

    fn is_known(&self, name: &str) -> bool {
        self.names.contains(&name) || self.bound.iter().any(|bound| bound == name)
    }

    fn identifier(&mut self, name: String) -> Result<Expr, CompileError> {
        let at = self.previous();
        let literal = |literal| Ok(Expr { at, kind: ExprKind::Literal(literal) });
        match name.as_str() {
            "true" | "false" => return literal(CelValue::Bool(name == "true")),
            "null" => return literal(CelValue::Null),
            _ => {}
        }
        if self.eat("(") {
            let at = self.previous();
            if name == "has" {
                let inner = self.conditional()?;
                self.expect(")")?;
                let ExprKind::Field { of, field, .. } = inner.kind else {
                    return Err(CompileError::new(
                        at,
                        "invalid argument to has() macro: it takes a field, as in has(self.name)",
                    ));
                };
                return Ok(Expr { at, kind: ExprKind::Has { of, field } });
            }
            let given = self.list(")")?;
            return Self::function(at, name, given);
        }
        let known = self.is_known(&name);
        if let Some(known) = TYPES.iter().find(|one| **one == name).filter(|_| !known) {
            return literal(CelValue::Type(known));
        }
        let space = SPACES.contains(&name.as_str())
            && matches!(self.tokens.get(self.at), Some((CelToken::Punctuation("."), _)));
        if !known && !space {
            return Err(unknown_name(at, &name, false, 0));
        }
        self.compares |= name == "oldSelf" && !self.bound.contains(&name);
        Ok(Expr { at, kind: ExprKind::Name(name) })
    }
}

/// `known`: it is, with another number of arguments.
fn unknown_name(at: usize, name: &str, known: bool, given: usize) -> CompileError {
    CompileError::new(
        at,
        if known {
            format!("found no matching overload for '{name}' applied to {given} arguments")
        } else {
            format!("undeclared reference to '{name}' (in container '')")
        },
    )
}

/// A field's own name: what CEL has no words for is written with underscores.
fn unescaped(name: &str) -> String {
    if !name.contains("__") {
        return name.to_owned();
    }
    let mut found = String::new();
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        found.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let known = [("underscores__", "__"), ("dot__", "."), ("dash__", "-"), ("slash__", "/")];
        if let Some((written, meant)) = known.iter().find(|(written, _)| inner.starts_with(written)) {
            found.push_str(meant);
            rest = &inner[written.len()..];
        } else if let Some(word) = inner.strip_suffix("__").filter(|_| found.is_empty()) {
            // A word that CEL keeps for itself: `__namespace__`.
            return word.to_owned();
        } else {
            found.push_str("__");
            rest = inner;
        }
    }
    found + rest
}
