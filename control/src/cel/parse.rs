//! Words become a tree. What a rule may call and speak of is checked here, once.

use super::call::{is_function, is_function_name, is_method, is_method_name};
use super::token::{self, Token};
use super::value::Val;
use super::{DEPTH_MAX, Mistake, NESTING_MAX};

/// A part of a rule.
#[derive(Debug)]
pub(super) struct Expr {
    /// The byte of the rule that stands for it.
    pub(super) at: usize,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Literal(Val),
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
    Minus(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Choose(Box<Expr>, Box<Expr>, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Call {
        name: String,
        of: Option<Box<Expr>>,
        given: Vec<Expr>,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// Goes through `of`, calling each item (or key) by the one name, or place and item (or key and value) by the two.
    Each {
        how: Each,
        of: Box<Expr>,
        names: Vec<String>,
        test: Box<Expr>,
        then: Option<Box<Expr>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Each {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    /// Of what is optional: the test of what is there, or nothing.
    OptMap,
    /// The same, with a test that is optional itself.
    OptFlatMap,
}

/// Names of types, which are values too.
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
/// What stands before the names of some functions.
const SPACES: [&str; 3] = ["format", "optional", "sets"];
/// Operators of two, by how closely they bind; `&&`, `||` and `?` are apart.
const LEVELS: [&[&str]; 3] = [&["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];

struct Parser<'a> {
    tokens: Vec<(Token, usize)>,
    at: usize,
    /// Bytes of the rule.
    end: usize,
    names: &'a [&'a str],
    /// Names that `all` and its like gave, innermost last.
    bound: Vec<String>,
    nesting: usize,
    /// Links of the chains that the place being read hangs from.
    links: usize,
    compares: bool,
}

/// The tree of `rule`, and whether it speaks of what was there before.
pub(super) fn read(rule: &str, names: &[&str]) -> Result<(Expr, bool), Mistake> {
    let tokens = token::cut(rule)?;
    let mut parser = Parser {
        tokens,
        at: 0,
        end: rule.len(),
        names,
        bound: Vec::new(),
        nesting: 0,
        links: 0,
        compares: false,
    };
    let root = parser.whole()?;
    if parser.at < parser.tokens.len() {
        return Err(parser.unexpected("the end"));
    }
    if depth(&root) > DEPTH_MAX {
        return Err(Mistake::new(0, format!("a rule is at most {DEPTH_MAX} levels deep")));
    }
    Ok((root, parser.compares))
}

/// Its own depth is a few times [`DEPTH_MAX`] at most, which [`Parser::chain`] sees to.
fn depth(expr: &Expr) -> usize {
    let deepest = |all: &[Expr]| all.iter().map(depth).max().unwrap_or(0);
    1 + match &expr.what {
        What::Literal(_) | What::Name(_) => 0,
        What::Field { of, .. } | What::Has { of, .. } | What::Not(of) | What::Minus(of) => depth(of),
        What::Index { of, index, .. } => depth(of).max(depth(index)),
        What::And(all) | What::Or(all) | What::List(all) => deepest(all),
        What::Choose(one, two, three) => depth(one).max(depth(two)).max(depth(three)),
        What::Binary(_, one, two) => depth(one).max(depth(two)),
        What::Call { of, given, .. } => deepest(given).max(of.as_deref().map_or(0, depth)),
        What::Map(pairs) => pairs.iter().map(|(key, value)| depth(key).max(depth(value))).max().unwrap_or(0),
        What::Each { of, test, then, .. } => depth(of).max(depth(test)).max(then.as_deref().map_or(0, depth)),
    }
}

impl Parser<'_> {
    /// Where the next word begins.
    fn here(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(_, at)| *at)
    }

    /// Where the last one began.
    fn behind(&self) -> usize {
        self.tokens.get(self.at.wrapping_sub(1)).map_or(0, |(_, at)| *at)
    }

    fn unexpected(&self, wanted: &str) -> Mistake {
        let why = match self.tokens.get(self.at) {
            Some((token, _)) => format!("Syntax error: found {token:?}, expected {wanted}"),
            None => format!("Syntax error: found the end, expected {wanted}"),
        };
        Mistake::new(self.here(), why)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((Token::Mark(found), _)) if *found == mark);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, mark: &str) -> Result<(), Mistake> {
        if self.eat(mark) { Ok(()) } else { Err(self.unexpected(&format!("{mark:?}"))) }
    }

    fn name(&mut self) -> Result<String, Mistake> {
        match self.tokens.get(self.at) {
            Some((Token::Name(name), _)) => {
                self.at += 1;
                Ok(name.clone())
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Counts the links of a chain: each becomes a level of the tree.
    fn chain(&mut self) -> Result<(), Mistake> {
        self.links += 1;
        if self.links > DEPTH_MAX {
            Err(Mistake::new(self.here(), format!("a rule is at most {DEPTH_MAX} levels deep")))
        } else {
            Ok(())
        }
    }

    fn whole(&mut self) -> Result<Expr, Mistake> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            let why = format!("a rule has at most {NESTING_MAX} levels of brackets");
            return Err(Mistake::new(self.here(), why));
        }
        let test = self.either()?;
        let at = self.here();
        let found = if self.eat("?") {
            let one = self.either()?;
            self.need(":")?;
            let what = What::Choose(Box::new(test), Box::new(one), Box::new(self.whole()?));
            Expr { at, what }
        } else {
            test
        };
        self.nesting -= 1;
        Ok(found)
    }

    fn either(&mut self) -> Result<Expr, Mistake> {
        let mut all = vec![self.both()?];
        let at = self.here();
        while self.eat("||") {
            all.push(self.both()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr { at, what: What::Or(all) } })
    }

    fn both(&mut self) -> Result<Expr, Mistake> {
        let mut all = vec![self.binary(0)?];
        let at = self.here();
        while self.eat("&&") {
            all.push(self.binary(0)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr { at, what: What::And(all) } })
    }

    fn binary(&mut self, level: usize) -> Result<Expr, Mistake> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        let outside = self.links;
        while let Some(operator) = self.operator(operators) {
            let at = self.behind();
            self.chain()?;
            let right = self.binary(level + 1)?;
            left = Expr { at, what: What::Binary(operator, Box::new(left), Box::new(right)) };
        }
        self.links = outside;
        Ok(left)
    }

    fn operator(&mut self, among: &[&'static str]) -> Option<&'static str> {
        let found = match &self.tokens.get(self.at)?.0 {
            Token::Mark(mark) => *mark,
            Token::Name(name) if name == "in" => "in",
            _ => return None,
        };
        let found = among.iter().find(|one| **one == found)?;
        self.at += 1;
        Some(found)
    }

    fn unary(&mut self) -> Result<Expr, Mistake> {
        let (mut nots, mut minuses, at) = (0, 0, self.here());
        while self.eat("!") {
            nots += 1;
        }
        while nots == 0 && self.eat("-") {
            minuses += 1;
        }
        if minuses % 2 == 1 && matches!(self.tokens.get(self.at), Some((Token::IntMin, _))) {
            self.at += 1;
            return self.links(Expr { at, what: What::Literal(Val::Int(i64::MIN)) });
        }
        let first = self.primary()?;
        let mut found = self.links(first)?;
        let not = |found: Expr| Expr { at, what: What::Not(Box::new(found)) };
        if nots % 2 == 1 {
            found = not(found);
        } else if nots > 0 {
            found = not(not(found));
        }
        Ok(if minuses % 2 == 1 { Expr { at, what: What::Minus(Box::new(found)) } } else { found })
    }

    /// What stands behind a value: fields, calls, places.
    fn links(&mut self, mut found: Expr) -> Result<Expr, Mistake> {
        let outside = self.links;
        loop {
            self.chain()?;
            let at = self.here();
            let of = |found: Expr| Box::new(found);
            if self.eat(".") {
                let name = self.name()?;
                found = if self.eat("(") {
                    self.method(of(found), name)?
                } else {
                    Expr { at, what: What::Field { of: of(found), field: unescaped(&name), optional: false } }
                };
            } else if self.eat(".?") {
                let field = unescaped(&self.name()?);
                found = Expr { at, what: What::Field { of: of(found), field, optional: true } };
            } else if self.eat("[?") || self.eat("[") {
                let optional = matches!(self.tokens.get(self.at - 1), Some((Token::Mark("[?"), _)));
                let index = Box::new(self.whole()?);
                self.need("]")?;
                found = Expr { at, what: What::Index { of: of(found), index, optional } };
            } else {
                self.links = outside;
                return Ok(found);
            }
        }
    }

    fn method(&mut self, of: Box<Expr>, name: String) -> Result<Expr, Mistake> {
        let how = match name.as_str() {
            "all" => Some(Each::All),
            "exists" => Some(Each::Exists),
            "exists_one" | "existsOne" => Some(Each::ExistsOne),
            "filter" => Some(Each::Filter),
            "map" | "transformList" => Some(Each::Map),
            "optMap" => Some(Each::OptMap),
            "optFlatMap" => Some(Each::OptFlatMap),
            _ => None,
        };
        if let Some(how) = how {
            return self.each(how, name == "transformList", of);
        }
        let at = self.behind();
        let given = self.list(")")?;
        if let What::Name(space) = &of.what
            && SPACES.contains(&space.as_str())
            && !self.is_known(space)
        {
            return Self::function(at, format!("{space}.{name}"), given);
        }
        if !is_method(&name, given.len()) {
            return Err(unknown(at, &name, is_method_name(&name), given.len()));
        }
        Ok(Expr { at, what: What::Call { name, of: Some(of), given } })
    }

    /// `all(x, …)` and its like, behind the bracket. `both`: it has two names.
    fn each(&mut self, how: Each, both: bool, of: Box<Expr>) -> Result<Expr, Mistake> {
        let at = self.behind();
        let mut names = vec![self.name()?];
        self.need(",")?;
        let counts = matches!(how, Each::All | Each::Exists | Each::ExistsOne);
        let named = matches!(self.tokens.get(self.at), Some((Token::Name(_), _)))
            && matches!(self.tokens.get(self.at + 1), Some((Token::Mark(","), _)));
        if both || (counts && named) {
            names.push(self.name()?);
            self.need(",")?;
        }
        let outside = self.bound.len();
        self.bound.extend(names.iter().cloned());
        let test = Box::new(self.whole()?);
        let then = if how == Each::Map && self.eat(",") { Some(Box::new(self.whole()?)) } else { None };
        self.bound.truncate(outside);
        self.need(")")?;
        Ok(Expr { at, what: What::Each { how, of, names, test, then } })
    }

    fn function(at: usize, name: String, given: Vec<Expr>) -> Result<Expr, Mistake> {
        if !is_function(&name, given.len()) {
            return Err(unknown(at, &name, is_function_name(&name), given.len()));
        }
        Ok(Expr { at, what: What::Call { name, of: None, given } })
    }

    /// Parts with commas between them, up to `end`.
    fn list(&mut self, end: &str) -> Result<Vec<Expr>, Mistake> {
        let mut found = Vec::new();
        while !self.eat(end) {
            found.push(self.whole()?);
            if !self.eat(",") {
                self.need(end)?;
                break;
            }
        }
        Ok(found)
    }

    fn primary(&mut self) -> Result<Expr, Mistake> {
        if self.eat("(") {
            let inner = self.whole()?;
            self.need(")")?;
            return Ok(inner);
        }
        let at = self.here();
        if self.eat("[") {
            return Ok(Expr { at, what: What::List(self.list("]")?) });
        }
        if self.eat("{") {
            return self.map(at);
        }
        let Some((token, _)) = self.tokens.get(self.at).cloned() else {
            return Err(self.unexpected("a value"));
        };
        let literal = match token {
            Token::Int(number) => Val::Int(number),
            Token::Uint(number) => Val::Uint(number),
            Token::Double(number) => Val::Double(number),
            Token::Text(text) => Val::Text(text.into()),
            Token::Bytes(bytes) => Val::Bytes(bytes.into()),
            Token::Name(name) => {
                self.at += 1;
                return self.named(name);
            }
            Token::Mark(_) | Token::IntMin => return Err(self.unexpected("a value")),
        };
        self.at += 1;
        Ok(Expr { at, what: What::Literal(literal) })
    }

    fn map(&mut self, at: usize) -> Result<Expr, Mistake> {
        let mut pairs = Vec::new();
        while !self.eat("}") {
            let key = self.whole()?;
            self.need(":")?;
            pairs.push((key, self.whole()?));
            if !self.eat(",") {
                self.need("}")?;
                break;
            }
        }
        Ok(Expr { at, what: What::Map(pairs) })
    }

    fn is_known(&self, name: &str) -> bool {
        self.names.contains(&name) || self.bound.iter().any(|bound| bound == name)
    }

    fn named(&mut self, name: String) -> Result<Expr, Mistake> {
        let at = self.behind();
        let literal = |literal| Ok(Expr { at, what: What::Literal(literal) });
        match name.as_str() {
            "true" | "false" => return literal(Val::Bool(name == "true")),
            "null" => return literal(Val::Null),
            _ => {}
        }
        if self.eat("(") {
            let at = self.behind();
            if name == "has" {
                let inner = self.whole()?;
                self.need(")")?;
                let What::Field { of, field, .. } = inner.what else {
                    return Err(Mistake::new(
                        at,
                        "invalid argument to has() macro: it takes a field, as in has(self.name)",
                    ));
                };
                return Ok(Expr { at, what: What::Has { of, field } });
            }
            let given = self.list(")")?;
            return Self::function(at, name, given);
        }
        let known = self.is_known(&name);
        if let Some(known) = TYPES.iter().find(|one| **one == name).filter(|_| !known) {
            return literal(Val::Type(known));
        }
        let space = SPACES.contains(&name.as_str())
            && matches!(self.tokens.get(self.at), Some((Token::Mark("."), _)));
        if !known && !space {
            return Err(unknown(at, &name, false, 0));
        }
        self.compares |= name == "oldSelf" && !self.bound.contains(&name);
        Ok(Expr { at, what: What::Name(name) })
    }
}

/// `known`: it is, with another number of arguments.
fn unknown(at: usize, name: &str, known: bool, given: usize) -> Mistake {
    Mistake::new(
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
